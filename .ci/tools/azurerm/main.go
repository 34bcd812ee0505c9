// Azurerm stands in for Terraform's provider of this name, which takes an hour to build: it knows what each resource takes
// and gives, and does nothing. terraform validate and terraform test need no more.
//
// It reads that from CDKTF, a directory with the folders of @cdktf/provider-azurerm, TypeScript that was generated from the
// provider's schema. It cannot know what the provider checks besides, such as the form of a name.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/terraform-plugin-go/tfprotov5"
	"github.com/hashicorp/terraform-plugin-go/tfprotov5/tf5server"
)

func main() {
	err := tf5server.Serve("registry.terraform.io/hashicorp/azurerm", func() tfprotov5.ProviderServer { return provider{} })
	if err != nil {
		fmt.Fprintln(os.Stderr, "azurerm:", err)
		os.Exit(1)
	}
}

// A provider answers what Terraform asks before it would do something. Anything else would panic.
type provider struct{ tfprotov5.ProviderServer }

func (provider) GetMetadata(context.Context, *tfprotov5.GetMetadataRequest) (*tfprotov5.GetMetadataResponse, error) {
	return &tfprotov5.GetMetadataResponse{}, nil
}

func (provider) GetProviderSchema(context.Context, *tfprotov5.GetProviderSchemaRequest) (*tfprotov5.GetProviderSchemaResponse, error) {
	dirs, err := filepath.Glob(filepath.Join(os.Getenv("CDKTF"), "*", "index.d.ts"))
	if err != nil || len(dirs) == 0 {
		return nil, fmt.Errorf("CDKTF=%s holds no resources: %v", os.Getenv("CDKTF"), err)
	}
	r := &tfprotov5.GetProviderSchemaResponse{
		Provider:        &tfprotov5.Schema{Block: &tfprotov5.SchemaBlock{}},
		ResourceSchemas: map[string]*tfprotov5.Schema{},
	}
	for _, dir := range dirs {
		name, block, err := read(filepath.Dir(dir))
		if err != nil {
			return nil, err
		}
		r.ResourceSchemas[name] = &tfprotov5.Schema{Block: block}
	}
	return r, nil
}

func (provider) ValidateResourceTypeConfig(context.Context, *tfprotov5.ValidateResourceTypeConfigRequest) (*tfprotov5.ValidateResourceTypeConfigResponse, error) {
	return &tfprotov5.ValidateResourceTypeConfigResponse{}, nil
}

func (provider) PrepareProviderConfig(_ context.Context, r *tfprotov5.PrepareProviderConfigRequest) (*tfprotov5.PrepareProviderConfigResponse, error) {
	return &tfprotov5.PrepareProviderConfigResponse{PreparedConfig: r.Config}, nil
}

func (provider) StopProvider(context.Context, *tfprotov5.StopProviderRequest) (*tfprotov5.StopProviderResponse, error) {
	return &tfprotov5.StopProviderResponse{}, nil
}
