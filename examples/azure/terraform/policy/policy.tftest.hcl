# terraform test (or tofu test) plans the policies without Azure: the provider's answers are made up.
mock_provider "azurerm" {
  mock_resource "azurerm_policy_definition" {
    defaults = { id = "/subscriptions/00000000-0000-0000-0000-000000000000/providers/Microsoft.Authorization/policyDefinitions/forewarn" }
  }
}

variables {
  subscription_id = "/subscriptions/00000000-0000-0000-0000-000000000000"
  location        = "westeurope"
  folder          = "https://example.blob.core.windows.net/forewarn/0.1.0"
  sha256_linux    = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
  sha256_windows  = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
}

run "one_policy_for_vms_and_one_for_scale_sets" {
  assert {
    condition = {
      for name, policy in azurerm_policy_definition.forewarn : name => jsondecode(policy.policy_rule).then.details.type
      } == {
      forewarn-vm   = "Microsoft.Compute/virtualMachines/extensions"
      forewarn-vmss = "Microsoft.Compute/virtualMachineScaleSets/extensions"
    }
    error_message = "The policies deploy other things."
  }
  assert {
    condition     = alltrue([for policy in azurerm_policy_definition.forewarn : keys(jsondecode(policy.parameters)) == ["effect", "folder", "sha256Linux", "sha256Windows"]])
    error_message = "The policies have other parameters."
  }
  assert {
    condition     = alltrue([for name, given in azurerm_subscription_policy_assignment.forewarn : jsondecode(given.parameters).folder.value == var.folder && length(given.identity) == 1])
    error_message = "The assignments have other parameters, or no identity."
  }
}
