# terraform test (or tofu test) plans the four kinds without Azure: the provider's answers are made up.
mock_provider "azurerm" {
  mock_resource "azurerm_user_assigned_identity" {
    defaults = {
      id           = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/web/providers/Microsoft.ManagedIdentity/userAssignedIdentities/web-forewarn"
      client_id    = "11111111-1111-1111-1111-111111111111"
      principal_id = "22222222-2222-2222-2222-222222222222"
    }
  }
  mock_resource "azurerm_network_interface" {
    defaults = { id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/web/providers/Microsoft.Network/networkInterfaces/web" }
  }
  mock_resource "azurerm_linux_virtual_machine" {
    defaults = { id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/web/providers/Microsoft.Compute/virtualMachines/web" }
  }
  mock_resource "azurerm_windows_virtual_machine" {
    defaults = { id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/web/providers/Microsoft.Compute/virtualMachines/web" }
  }
}

variables {
  name                = "web"
  resource_group_name = "web"
  location            = "westeurope"
  subnet_id           = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/web/providers/Microsoft.Network/virtualNetworks/web/subnets/web"
  admin_secret        = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAiHyFHnqGb7rhbWcGlEdGV7VmLtFGXwtFFDGrJKrPmV you"
  folder              = "https://example.blob.core.windows.net/forewarn/0.1.0"
  sha256              = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
}

run "one_linux_vm_reads_its_secrets_from_a_vault" {
  variables {
    os = "linux"
    roles = {
      "Key Vault Secrets User"   = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/ops/providers/Microsoft.KeyVault/vaults/ops"
      "Storage Blob Data Reader" = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/ops/providers/Microsoft.Storage/storageAccounts/example"
    }
  }
  assert {
    condition = jsondecode(azurerm_virtual_machine_extension.forewarn[0].protected_settings) == {
      fileUris         = [for file in ["install.sh", "forewarn.deb", "forewarn.yaml"] : "https://example.blob.core.windows.net/forewarn/0.1.0/${file}"]
      commandToExecute = "sh install.sh e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
      managedIdentity  = { clientId = "11111111-1111-1111-1111-111111111111" }
    }
    error_message = "The extension has other settings."
  }
  assert {
    condition     = azurerm_role_assignment.forewarn["Key Vault Secrets User"].principal_id == "22222222-2222-2222-2222-222222222222"
    error_message = "The identity cannot read secrets."
  }
  assert {
    condition     = length(azurerm_windows_virtual_machine.vm) + length(azurerm_linux_virtual_machine_scale_set.set) + length(azurerm_windows_virtual_machine_scale_set.set) == 0
    error_message = "There is more than the VM."
  }
}

run "one_windows_vm" {
  variables {
    os = "windows"
  }
  assert {
    condition = jsondecode(azurerm_virtual_machine_extension.forewarn[0].protected_settings) == {
      fileUris         = [for file in ["install.ps1", "forewarn.exe", "forewarn.yaml"] : "https://example.blob.core.windows.net/forewarn/0.1.0/${file}"]
      commandToExecute = "powershell -ExecutionPolicy Bypass -File install.ps1 -Sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    }
    error_message = "The extension has other settings."
  }
  assert {
    condition     = length(azurerm_role_assignment.forewarn) == 0 && length(azurerm_linux_virtual_machine.vm) == 0
    error_message = "There is more than the VM and its identity."
  }
}

run "a_linux_scale_set_hears_of_its_end" {
  variables {
    os        = "linux"
    instances = 3
    package   = "forewarn.rpm"
    image     = { publisher = "RedHat", offer = "RHEL", sku = "9-lvm-gen2", version = "latest" }
  }
  assert {
    condition     = azurerm_linux_virtual_machine_scale_set.set[0].termination_notification[0].enabled && azurerm_linux_virtual_machine_scale_set.set[0].instances == 3
    error_message = "Azure would not announce that it deletes a VM."
  }
  assert {
    condition     = strcontains(one(azurerm_linux_virtual_machine_scale_set.set[0].extension).protected_settings, "0.1.0/forewarn.rpm") && azurerm_linux_virtual_machine_scale_set.set[0].source_image_reference[0].publisher == "RedHat"
    error_message = "The package or the image is another."
  }
  assert {
    condition     = length(azurerm_network_interface.vm) + length(azurerm_virtual_machine_extension.forewarn) == 0
    error_message = "There is a VM beside the set."
  }
}

run "a_windows_scale_set_has_names_short_enough" {
  variables {
    name      = "web-frontend-1"
    os        = "windows"
    instances = 2
  }
  assert {
    condition     = azurerm_windows_virtual_machine_scale_set.set[0].computer_name_prefix == "web-front"
    error_message = "The prefix of the names is another."
  }
}

run "a_sum_that_is_none_is_refused" {
  command = plan
  variables {
    os     = "linux"
    sha256 = "abc"
  }
  expect_failures = [var.sha256]
}

run "another_system_is_refused" {
  command = plan
  variables {
    os = "solaris"
  }
  expect_failures = [var.os]
}
