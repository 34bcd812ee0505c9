package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tfprotov5"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// A source is the generated TypeScript of one resource: js has the names that Terraform has and their types, declared
// which of a block's properties are required.
type source struct {
	js       string
	declared map[string]map[string]bool
}

var (
	interfaces = regexp.MustCompile(`(?s)export interface (\w+)[^{]*\{(.*?)\n\}`)
	properties = regexp.MustCompile(`readonly (\w+)(\??): `)
	resource   = regexp.MustCompile(`\nclass (\w+) extends cdktf\.TerraformResource`)
	typeName   = regexp.MustCompile(`terraformResourceType: '(\w+)'`)
	entries    = regexp.MustCompile(`\n +(\w+): \{\n +value: ([^\n]*),\n +isBlock: (\w+),\n +type: "(\w+)",\n +storageClassType: "(\w+)"`)
	function   = regexp.MustCompile(`(\w+)ToHclTerraform`)
	answers    = regexp.MustCompile(`return this\.get(String|Number|Boolean|List)Attribute\('(\w+)'\)`)
	underscore = regexp.MustCompile(`_(\w)`)
)

// read reads the resource of a folder.
func read(dir string) (name string, block *tfprotov5.SchemaBlock, err error) {
	js, err := os.ReadFile(filepath.Join(dir, "index.js"))
	if err != nil {
		return "", nil, err
	}
	types, err := os.ReadFile(filepath.Join(dir, "index.d.ts"))
	if err != nil {
		return "", nil, err
	}
	s := source{js: string(js), declared: map[string]map[string]bool{}}
	for _, m := range interfaces.FindAllStringSubmatch(string(types), -1) {
		s.declared[m[1]] = map[string]bool{}
		for _, p := range properties.FindAllStringSubmatch(m[2], -1) {
			s.declared[m[1]][p[1]] = p[2] == ""
		}
	}
	class, kind := resource.FindStringSubmatchIndex(s.js), typeName.FindStringSubmatch(s.js)
	start := strings.LastIndex(s.js, "synthesizeHclAttributes()")
	if class == nil || kind == nil || start < 0 {
		return "", nil, fmt.Errorf("%s is not the code of a resource", dir)
	}
	block, err = s.block(s.js[start:], s.js[class[0]:], s.js[class[2]:class[3]]+"Config")
	return kind[1], block, err
}

// block makes a block of the entries in body, the answers in class and the properties of an interface.
func (s source) block(body, class, name string) (*tfprotov5.SchemaBlock, error) {
	declared, block := s.declared[name], &tfprotov5.SchemaBlock{}
	seen := map[string]bool{}
	given := map[string]string{}
	for _, m := range answers.FindAllStringSubmatch(class, -1) {
		given[m[2]] = m[1]
	}
	for _, m := range entries.FindAllStringSubmatch(body, -1) {
		name, required := m[1], declared[camel(m[1])]
		if m[3] == "true" {
			nested, err := s.nested(name, m[2], m[4], required)
			if err != nil {
				return nil, err
			}
			block.BlockTypes = append(block.BlockTypes, nested)
			continue
		}
		_, computed := given[name]
		seen[name] = true
		block.Attributes = append(block.Attributes, &tfprotov5.SchemaAttribute{Name: name, Type: typeOf(m[4], m[5]),
			Required: required, Optional: !required, Computed: computed && !required})
	}
	for name, kind := range given {
		if !seen[name] {
			t := map[string]tftypes.Type{"String": tftypes.String, "Number": tftypes.Number, "Boolean": tftypes.Bool,
				"List": tftypes.List{ElementType: tftypes.String}}[kind]
			block.Attributes = append(block.Attributes, &tfprotov5.SchemaAttribute{Name: name, Type: t, Computed: true})
		}
	}
	return block, nil
}

// nested makes a block within a block, whose entries are in the function that value calls.
func (s source) nested(name, value, kind string, required bool) (*tfprotov5.SchemaNestedBlock, error) {
	names := function.FindAllStringSubmatch(value, -1)
	if len(names) == 0 {
		return nil, fmt.Errorf("block %s has the value %s", name, value)
	}
	called := names[len(names)-1][1]
	inner := strings.ToUpper(called[:1]) + called[1:]
	_, body, _ := strings.Cut(s.js, "function "+called+"ToHclTerraform(struct)")
	body, _, _ = strings.Cut(body, "\n}")
	_, class, _ := strings.Cut(s.js, "class "+inner+"OutputReference")
	class, _, _ = strings.Cut(class, "\nexports.")
	block, err := s.block(body, class, inner)
	if err != nil {
		return nil, err
	}
	b := &tfprotov5.SchemaNestedBlock{TypeName: name, Block: block, Nesting: tfprotov5.SchemaNestedBlockNestingModeList}
	if name == "timeouts" {
		b.Nesting = tfprotov5.SchemaNestedBlockNestingModeSingle
		return b, nil
	}
	if kind == "set" {
		b.Nesting = tfprotov5.SchemaNestedBlockNestingModeSet
	}
	if required {
		b.MinItems = 1
	}
	if !strings.Contains(value, "listMapperHcl") {
		b.MaxItems = 1
	}
	return b, nil
}

func typeOf(kind, storage string) tftypes.Type {
	scalar := func(name string) tftypes.Type {
		switch name {
		case "number":
			return tftypes.Number
		case "boolean":
			return tftypes.Bool
		}
		return tftypes.String
	}
	element := scalar(strings.TrimSuffix(strings.TrimSuffix(storage, "List"), "Map"))
	switch kind {
	case "list":
		return tftypes.List{ElementType: element}
	case "set":
		return tftypes.Set{ElementType: element}
	case "map":
		return tftypes.Map{ElementType: element}
	}
	return scalar(storage)
}

// camel writes a name of Terraform as TypeScript does: client_id is clientId.
func camel(name string) string {
	return underscore.ReplaceAllStringFunc(name, func(s string) string { return strings.ToUpper(s[1:]) })
}
