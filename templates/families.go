package templates

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// families returns whom the fields of a group hit, for people: names that differ only in their number are one family, such
// as "31 of web-*, 18 of db-*". It names the largest three.
func families(group any) string {
	var order []string
	members := map[string][]string{}
	star := "*"
	for _, f := range items(group) {
		fields, _ := f.(map[string]any)
		if fields["markup"] == "slack" {
			star = literally.Replace(star)
		}
		for _, v := range items(fields["resources"]) {
			name := Cut(Line(text(v)), longestName)
			family := strings.TrimRight(name, "0123456789")
			if members[family] == nil {
				order = append(order, family)
			}
			if !slices.Contains(members[family], name) {
				members[family] = append(members[family], name)
			}
		}
	}
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(len(members[b]), len(members[a])) })
	var shown []string
	others := 0
	for i, family := range order {
		switch all := members[family]; {
		case i >= 3:
			others += len(all)
		case len(all) == 1:
			shown = append(shown, all[0])
		default:
			shown = append(shown, fmt.Sprintf("%d of %s%s", len(all), family, star))
		}
	}
	if others > 0 {
		shown = append(shown, fmt.Sprintf("%d more", others))
	}
	return strings.Join(shown, ", ")
}
