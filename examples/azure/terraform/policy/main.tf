# The Azure Policy of policy.json, for VMs and for scale sets, assigned to a subscription: it installs forewarn where the
# tag forewarn says linux or windows. On a scale set whose upgrade mode is Manual, its VMs need az vmss update-instances.

terraform {
  required_version = ">= 1.3"
  required_providers {
    azurerm = {
      source  = "hashicorp/azurerm"
      version = "~> 4.0"
    }
  }
}

variable "subscription_id" {
  description = "As /subscriptions/…"
  type        = string
}

variable "location" {
  type = string
}

variable "folder" {
  description = "URL of the folder with install.sh, install.ps1, forewarn.deb, forewarn.exe and forewarn.yaml."
  type        = string
}

variable "sha256_linux" {
  description = "SHA-256 of forewarn.deb."
  type        = string
  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.sha256_linux))
    error_message = "Expected 64 hex digits in lower case."
  }
}

variable "sha256_windows" {
  description = "SHA-256 of forewarn.exe."
  type        = string
  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.sha256_windows))
    error_message = "Expected 64 hex digits in lower case."
  }
}

locals {
  for_vms = file("${path.module}/../../policy.json")
  policies = {
    forewarn-vm   = jsondecode(local.for_vms)
    forewarn-vmss = jsondecode(replace(local.for_vms, "Microsoft.Compute/virtualMachines", "Microsoft.Compute/virtualMachineScaleSets"))
  }
}

resource "azurerm_policy_definition" "forewarn" {
  for_each     = local.policies
  name         = each.key
  display_name = each.key == "forewarn-vm" ? "forewarn on VMs with the tag forewarn" : "forewarn on scale sets with the tag forewarn"
  policy_type  = "Custom"
  mode         = each.value.mode
  parameters   = jsonencode(each.value.parameters)
  policy_rule  = jsonencode(each.value.policyRule)
}

resource "azurerm_subscription_policy_assignment" "forewarn" {
  for_each             = local.policies
  name                 = each.key
  policy_definition_id = azurerm_policy_definition.forewarn[each.key].id
  subscription_id      = var.subscription_id
  location             = var.location
  parameters = jsonencode({
    folder        = { value = var.folder }
    sha256Linux   = { value = var.sha256_linux }
    sha256Windows = { value = var.sha256_windows }
  })
  identity {
    type = "SystemAssigned"
  }
}

resource "azurerm_role_assignment" "forewarn" {
  for_each             = local.policies
  scope                = var.subscription_id
  role_definition_name = "Virtual Machine Contributor"
  principal_id         = azurerm_subscription_policy_assignment.forewarn[each.key].identity[0].principal_id
  principal_type       = "ServicePrincipal"
}
