// A VM or a scale set, of Linux or Windows, with forewarn on it: the identity with which forewarn reads secrets and posts
// events, its roles, and the Custom Script extension that installs it.
//
//   az deployment group create --resource-group web --template-file vm.bicep --parameters name=web os=linux instances=3 \
//     subnetId=SUBNET adminSecret="$(cat ~/.ssh/id_ed25519.pub)" folder=https://ACCOUNT.blob.core.windows.net/forewarn/0.1.0 sha256=SHA256 \
//     storageAccount=ACCOUNT vault=VAULT

@description('Name of the VM or the scale set, and of what belongs to it.')
@maxLength(15)
param name string

@allowed(['linux', 'windows'])
param os string

@description('0 makes one VM. More make a scale set of so many.')
@minValue(0)
param instances int = 0

param location string = resourceGroup().location
param size string = 'Standard_B2s'
param subnetId string

param image object = os == 'linux'
  ? { publisher: 'Debian', offer: 'debian-12', sku: '12-gen2', version: 'latest' }
  : { publisher: 'MicrosoftWindowsServer', offer: 'WindowsServer', sku: '2022-datacenter-azure-edition', version: 'latest' }

param adminName string = 'azureuser'

@description('An SSH public key on Linux, a password on Windows.')
@secure()
param adminSecret string

@description('URL of a folder with install.sh, forewarn.deb or forewarn.rpm, and forewarn.yaml; on Windows with install.ps1, forewarn.exe and forewarn.yaml. Another folder, such as one named after the version, installs what is there.')
param folder string

@description('forewarn.deb or forewarn.rpm; what is in the folder.')
@allowed(['forewarn.deb', 'forewarn.rpm', 'forewarn.exe'])
param package string = os == 'linux' ? 'forewarn.deb' : 'forewarn.exe'

@description('SHA-256 of the package.')
@minLength(64)
@maxLength(64)
param sha256 string

@description('Storage account of this resource group that has the folder. Without it the folder is read as anybody reads it.')
param storageAccount string = ''

@description('Key Vault of this resource group with the secrets of the settings (keys that end in _vault).')
param vault string = ''

@description('Event Grid topic of this resource group that the settings post to with azure_identity.')
param topic string = ''

var linux = os == 'linux'

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: '${name}-forewarn'
  location: location
}

// An existing resource needs a name even where the condition of its role is false.
resource blobs 'Microsoft.Storage/storageAccounts@2023-05-01' existing = {
  name: empty(storageAccount) ? 'none' : storageAccount
}

resource secrets 'Microsoft.KeyVault/vaults@2023-07-01' existing = {
  name: empty(vault) ? 'none' : vault
}

resource events 'Microsoft.EventGrid/topics@2022-06-15' existing = {
  name: empty(topic) ? 'none' : topic
}

resource readsBlobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(storageAccount)) {
  name: guid(blobs.id, identity.id, 'Storage Blob Data Reader')
  scope: blobs
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '2a2b9908-6ea1-4ae2-8e65-a410df84e7d1')
  }
}

resource readsSecrets 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(vault)) {
  name: guid(secrets.id, identity.id, 'Key Vault Secrets User')
  scope: secrets
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '4633458b-17de-408a-b874-0445c86b69e6')
  }
}

resource sendsEvents 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(topic)) {
  name: guid(events.id, identity.id, 'EventGrid Data Sender')
  scope: events
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', 'd5a91429-5739-47e2-a06b-3470a27159e7')
  }
}

var osProfile = union({ adminUsername: adminName }, linux
  ? {
      linuxConfiguration: {
        disablePasswordAuthentication: true
        ssh: { publicKeys: [{ path: '/home/${adminName}/.ssh/authorized_keys', keyData: adminSecret }] }
      }
    }
  : { adminPassword: adminSecret })

var storageProfile = {
  imageReference: image
  osDisk: { createOption: 'FromImage', managedDisk: { storageAccountType: 'StandardSSD_LRS' } }
}

var identities = { type: 'UserAssigned', userAssignedIdentities: { '${identity.id}': {} } }

// A VM can have one extension of this type. Another command or another folder makes it run again.
var extension = {
  publisher: linux ? 'Microsoft.Azure.Extensions' : 'Microsoft.Compute'
  type: linux ? 'CustomScript' : 'CustomScriptExtension'
  typeHandlerVersion: linux ? '2.1' : '1.10'
  autoUpgradeMinorVersion: true
  protectedSettings: union({
    fileUris: map([linux ? 'install.sh' : 'install.ps1', package, 'forewarn.yaml'], file => '${folder}/${file}')
    commandToExecute: linux
      ? 'sh install.sh ${sha256}'
      : 'powershell -ExecutionPolicy Bypass -File install.ps1 -Sha256 ${sha256}'
  }, empty(storageAccount) ? {} : { managedIdentity: { clientId: identity.properties.clientId } })
}

resource nic 'Microsoft.Network/networkInterfaces@2024-05-01' = if (instances == 0) {
  name: name
  location: location
  properties: {
    ipConfigurations: [{ name: 'ip', properties: { subnet: { id: subnetId } } }]
  }
}

resource vm 'Microsoft.Compute/virtualMachines@2024-07-01' = if (instances == 0) {
  name: name
  location: location
  identity: identities
  properties: {
    hardwareProfile: { vmSize: size }
    osProfile: union(osProfile, { computerName: name })
    storageProfile: storageProfile
    networkProfile: { networkInterfaces: [{ id: nic.id }] }
  }
}

resource vmExtension 'Microsoft.Compute/virtualMachines/extensions@2024-07-01' = if (instances == 0) {
  parent: vm
  name: 'forewarn'
  location: location
  properties: extension
  dependsOn: [readsBlobs, readsSecrets, sendsEvents]
}

// With the upgrade mode Automatic, VMs that are there get another version too. Without the notice, Azure announces no
// Terminate.
resource scaleSet 'Microsoft.Compute/virtualMachineScaleSets@2024-07-01' = if (instances > 0) {
  name: name
  location: location
  identity: identities
  sku: { name: size, capacity: instances }
  properties: {
    orchestrationMode: 'Uniform'
    upgradePolicy: { mode: 'Automatic' }
    virtualMachineProfile: {
      osProfile: union(osProfile, { computerNamePrefix: take(name, 9) })
      storageProfile: storageProfile
      networkProfile: {
        networkInterfaceConfigurations: [
          {
            name: 'nic'
            properties: {
              primary: true
              ipConfigurations: [{ name: 'ip', properties: { subnet: { id: subnetId } } }]
            }
          }
        ]
      }
      scheduledEventsProfile: { terminateNotificationProfile: { enable: true, notBeforeTimeout: 'PT10M' } }
      extensionProfile: { extensions: [{ name: 'forewarn', properties: extension }] }
    }
  }
  dependsOn: [readsBlobs, readsSecrets, sendsEvents]
}

@description('For client_id in the settings, where the VM has other identities too.')
output clientId string = identity.properties.clientId
