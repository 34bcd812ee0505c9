package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/wording"
)

// Lists for people show some hundred rows and the number of the rest. In JSON they are complete.
func TestListsForPeopleAreShort(t *testing.T) {
	t.Parallel()
	const n = wording.ShownRows + 100
	dir := t.TempDir()
	settings := filepath.Join(dir, "forewarn.yaml")
	if err := os.WriteFile(settings, fmt.Appendf(nil, "{state: %q, sinks: [{name: ops, file: {path: ops}}]}", dir),
		0o600); err != nil {
		t.Fatal(err)
	}
	box, err := outbox.Open(dir, outbox.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var batch outbox.Batch
	for i := range n {
		e, err := imds.UnmarshalEvent(fmt.Appendf(nil,
			`{"EventId": "%08d-0000-4000-8000-000000000000", "EventType": "Reboot"}`, i))
		if err != nil {
			t.Fatal(err)
		}
		change := imds.Change{Kind: imds.Scheduled, Event: e}
		ce, err := cloudevent.Wrap(change, cloudevent.Circumstances{Observer: imds.Observer{Name: "vm-0"}, Time: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(ce)
		if err != nil {
			t.Fatal(err)
		}
		a := outbox.Addition{Body: body, To: []string{"ops"}}
		a.ID, a.Type, a.Group, a.Change = ce.ID(), ce.Type(), e.ID, string(change.Kind)
		batch.Add = append(batch.Add, a)
	}
	if err := box.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(batch) })(); err != nil {
		t.Fatal(err)
	}
	if err := box.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		command, more, row string
	}{
		{"outbox list", "and 100 more; forewarn outbox list -o json shows all\n", "\nops/"},
		{"history", "100 older events left out; use --since, --event or --vm to select, -o json to print all\n", "\nevent "},
	} {
		args := append(strings.Fields(tt.command), "--config", settings)
		out, err := forewarn(t, args...).Output()
		if err != nil || !strings.Contains(string(out), tt.more) || strings.Count("\n"+string(out),
			tt.row) != wording.ShownRows {
			t.Errorf("%s shows %d rows (%v), want %d and %q:\n%.400s", tt.command, strings.Count("\n"+string(out), tt.row), err,
				wording.ShownRows, tt.more, out)
		}
		var all []json.RawMessage
		out, err = forewarn(t, append(args, "-o", "json")...).Output()
		if err != nil || json.Unmarshal(out, &all) != nil || len(all) != n {
			t.Errorf("%s -o json prints %d rows (%v), want %d", tt.command, len(all), err, n)
		}
	}
}
