# A VM or a scale set, of Linux or Windows, with forewarn on it: the identity with which forewarn reads secrets and posts
# events, its roles, and the Custom Script extension that installs it. A module; what calls it configures the provider.

terraform {
  required_version = ">= 1.3"
  required_providers {
    azurerm = {
      source  = "hashicorp/azurerm"
      version = "~> 4.0"
    }
  }
}

variable "name" {
  description = "Name of the VM or the scale set, and of what belongs to it."
  type        = string
  validation {
    condition     = length(var.name) <= 15
    error_message = "Expected at most 15 characters, as Windows does."
  }
}

variable "os" {
  type = string
  validation {
    condition     = contains(["linux", "windows"], var.os)
    error_message = "Expected linux or windows."
  }
}

variable "instances" {
  description = "0 makes one VM. More make a scale set of so many."
  type        = number
  default     = 0
}

variable "resource_group_name" {
  type = string
}

variable "location" {
  type = string
}

variable "subnet_id" {
  type = string
}

variable "size" {
  type    = string
  default = "Standard_B2s"
}

variable "image" {
  description = "By default Debian 12, or Windows Server 2022."
  type        = object({ publisher = string, offer = string, sku = string, version = string })
  default     = null
}

variable "admin_name" {
  type    = string
  default = "azureuser"
}

variable "admin_secret" {
  description = "An SSH public key on Linux, a password on Windows."
  type        = string
  sensitive   = true
}

variable "folder" {
  description = "URL of a folder with install.sh, forewarn.deb or forewarn.rpm, and forewarn.yaml; on Windows with install.ps1, forewarn.exe and forewarn.yaml. Another folder, such as one named after the version, installs what is there."
  type        = string
}

variable "package" {
  description = "forewarn.rpm, if that is what is in the folder. By default forewarn.deb or forewarn.exe."
  type        = string
  default     = null
}

variable "sha256" {
  description = "SHA-256 of the package."
  type        = string
  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.sha256))
    error_message = "Expected 64 hex digits in lower case."
  }
}

variable "roles" {
  description = "Roles of the identity and where it has them: Storage Blob Data Reader on the account that has the folder (without it the folder is read as anybody reads it), Key Vault Secrets User on the vault of the settings' secrets, EventGrid Data Sender on the topic that they post to."
  type        = map(string)
  default     = {}
}

locals {
  linux = var.os == "linux"
  image = coalesce(var.image, local.linux ? {
    publisher = "Debian", offer = "debian-12", sku = "12-gen2", version = "latest"
    } : {
    publisher = "MicrosoftWindowsServer", offer = "WindowsServer", sku = "2022-datacenter-azure-edition", version = "latest"
  })
  package = coalesce(var.package, local.linux ? "forewarn.deb" : "forewarn.exe")

  # A VM can have one extension of this type. Another command or another folder makes it run again.
  extension = {
    publisher = local.linux ? "Microsoft.Azure.Extensions" : "Microsoft.Compute"
    type      = local.linux ? "CustomScript" : "CustomScriptExtension"
    version   = local.linux ? "2.1" : "1.10"
    settings = jsonencode(merge({
      fileUris         = [for file in [local.linux ? "install.sh" : "install.ps1", local.package, "forewarn.yaml"] : "${var.folder}/${file}"]
      commandToExecute = local.linux ? "sh install.sh ${var.sha256}" : "powershell -ExecutionPolicy Bypass -File install.ps1 -Sha256 ${var.sha256}"
    }, contains(keys(var.roles), "Storage Blob Data Reader") ? { managedIdentity = { clientId = azurerm_user_assigned_identity.forewarn.client_id } } : {}))
  }
}

resource "azurerm_user_assigned_identity" "forewarn" {
  name                = "${var.name}-forewarn"
  resource_group_name = var.resource_group_name
  location            = var.location
}

resource "azurerm_role_assignment" "forewarn" {
  for_each             = var.roles
  scope                = each.value
  role_definition_name = each.key
  principal_id         = azurerm_user_assigned_identity.forewarn.principal_id
  principal_type       = "ServicePrincipal"
}

resource "azurerm_network_interface" "vm" {
  count               = var.instances == 0 ? 1 : 0
  name                = var.name
  resource_group_name = var.resource_group_name
  location            = var.location
  ip_configuration {
    name                          = "ip"
    subnet_id                     = var.subnet_id
    private_ip_address_allocation = "Dynamic"
  }
}

resource "azurerm_linux_virtual_machine" "vm" {
  count                 = local.linux && var.instances == 0 ? 1 : 0
  name                  = var.name
  resource_group_name   = var.resource_group_name
  location              = var.location
  size                  = var.size
  admin_username        = var.admin_name
  network_interface_ids = azurerm_network_interface.vm[*].id
  admin_ssh_key {
    username   = var.admin_name
    public_key = var.admin_secret
  }
  source_image_reference {
    publisher = local.image.publisher
    offer     = local.image.offer
    sku       = local.image.sku
    version   = local.image.version
  }
  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "StandardSSD_LRS"
  }
  identity {
    type         = "UserAssigned"
    identity_ids = [azurerm_user_assigned_identity.forewarn.id]
  }
}

resource "azurerm_windows_virtual_machine" "vm" {
  count                 = !local.linux && var.instances == 0 ? 1 : 0
  name                  = var.name
  resource_group_name   = var.resource_group_name
  location              = var.location
  size                  = var.size
  admin_username        = var.admin_name
  admin_password        = var.admin_secret
  network_interface_ids = azurerm_network_interface.vm[*].id
  source_image_reference {
    publisher = local.image.publisher
    offer     = local.image.offer
    sku       = local.image.sku
    version   = local.image.version
  }
  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "StandardSSD_LRS"
  }
  identity {
    type         = "UserAssigned"
    identity_ids = [azurerm_user_assigned_identity.forewarn.id]
  }
}

resource "azurerm_virtual_machine_extension" "forewarn" {
  count                      = var.instances == 0 ? 1 : 0
  name                       = "forewarn"
  virtual_machine_id         = one(concat(azurerm_linux_virtual_machine.vm[*].id, azurerm_windows_virtual_machine.vm[*].id))
  publisher                  = local.extension.publisher
  type                       = local.extension.type
  type_handler_version       = local.extension.version
  auto_upgrade_minor_version = true
  protected_settings         = local.extension.settings
  depends_on                 = [azurerm_role_assignment.forewarn]
}

# With the upgrade mode Automatic, VMs that are there get another version too. Without the notice, Azure announces no
# Terminate.
resource "azurerm_linux_virtual_machine_scale_set" "set" {
  count               = local.linux && var.instances > 0 ? 1 : 0
  name                = var.name
  resource_group_name = var.resource_group_name
  location            = var.location
  sku                 = var.size
  instances           = var.instances
  upgrade_mode        = "Automatic"
  admin_username      = var.admin_name
  admin_ssh_key {
    username   = var.admin_name
    public_key = var.admin_secret
  }
  source_image_reference {
    publisher = local.image.publisher
    offer     = local.image.offer
    sku       = local.image.sku
    version   = local.image.version
  }
  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "StandardSSD_LRS"
  }
  network_interface {
    name    = "nic"
    primary = true
    ip_configuration {
      name      = "ip"
      primary   = true
      subnet_id = var.subnet_id
    }
  }
  identity {
    type         = "UserAssigned"
    identity_ids = [azurerm_user_assigned_identity.forewarn.id]
  }
  termination_notification {
    enabled = true
    timeout = "PT10M"
  }
  extension {
    name                       = "forewarn"
    publisher                  = local.extension.publisher
    type                       = local.extension.type
    type_handler_version       = local.extension.version
    auto_upgrade_minor_version = true
    protected_settings         = local.extension.settings
  }
  depends_on = [azurerm_role_assignment.forewarn]
}

resource "azurerm_windows_virtual_machine_scale_set" "set" {
  count                = !local.linux && var.instances > 0 ? 1 : 0
  name                 = var.name
  resource_group_name  = var.resource_group_name
  location             = var.location
  sku                  = var.size
  instances            = var.instances
  upgrade_mode         = "Automatic"
  computer_name_prefix = substr(var.name, 0, 9)
  admin_username       = var.admin_name
  admin_password       = var.admin_secret
  source_image_reference {
    publisher = local.image.publisher
    offer     = local.image.offer
    sku       = local.image.sku
    version   = local.image.version
  }
  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "StandardSSD_LRS"
  }
  network_interface {
    name    = "nic"
    primary = true
    ip_configuration {
      name      = "ip"
      primary   = true
      subnet_id = var.subnet_id
    }
  }
  identity {
    type         = "UserAssigned"
    identity_ids = [azurerm_user_assigned_identity.forewarn.id]
  }
  termination_notification {
    enabled = true
    timeout = "PT10M"
  }
  extension {
    name                       = "forewarn"
    publisher                  = local.extension.publisher
    type                       = local.extension.type
    type_handler_version       = local.extension.version
    auto_upgrade_minor_version = true
    protected_settings         = local.extension.settings
  }
  depends_on = [azurerm_role_assignment.forewarn]
}

output "client_id" {
  description = "For client_id in the settings, where the VM has other identities too."
  value       = azurerm_user_assigned_identity.forewarn.client_id
}
