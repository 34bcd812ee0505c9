package main

import (
	"github.com/spf13/cobra"

	"forewarn/bridge/cloudevent"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
)

func (p *program) schemaCommand() *cobra.Command {
	var ofSettings bool
	c := &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of the data in CloudEvents, or of the settings file",
		Example: `  forewarn schema > forewarn-v1.json
  forewarn schema --settings > forewarn-settings.json   # for an editor`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if ofSettings {
				return wording.PrintJSON(p.out, settings.Schema(sinks.Kinds()))
			}
			_, err := p.out.Write(cloudevent.Schema)
			return err
		},
	}
	c.Flags().BoolVar(&ofSettings, "settings", false, "print the schema of the settings file")
	return c
}
