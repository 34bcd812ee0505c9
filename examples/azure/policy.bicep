// The Azure Policy of policy.json, for VMs and for scale sets, assigned to a subscription: it installs forewarn where the
// tag forewarn says linux or windows. On a scale set whose upgrade mode is Manual, its VMs need az vmss update-instances.
//
//   az deployment sub create --location westeurope --template-file policy.bicep --parameters location=westeurope \
//     folder=https://ACCOUNT.blob.core.windows.net/forewarn/0.1.0 sha256Linux=SHA256 sha256Windows=SHA256
targetScope = 'subscription'

param location string

@description('URL of the folder with install.sh, install.ps1, forewarn.deb, forewarn.exe and forewarn.yaml.')
param folder string

@description('SHA-256 of forewarn.deb.')
@minLength(64)
@maxLength(64)
param sha256Linux string

@description('SHA-256 of forewarn.exe.')
@minLength(64)
@maxLength(64)
param sha256Windows string

var forVMs = loadTextContent('policy.json')
var policies = [
  { name: 'forewarn-vm', title: 'forewarn on VMs with the tag forewarn', text: forVMs }
  {
    name: 'forewarn-vmss'
    title: 'forewarn on scale sets with the tag forewarn'
    text: replace(forVMs, 'Microsoft.Compute/virtualMachines', 'Microsoft.Compute/virtualMachineScaleSets')
  }
]

resource definitions 'Microsoft.Authorization/policyDefinitions@2023-04-01' = [for policy in policies: {
  name: policy.name
  properties: union(json(policy.text), { displayName: policy.title, policyType: 'Custom' })
}]

resource assignments 'Microsoft.Authorization/policyAssignments@2023-04-01' = [for (policy, i) in policies: {
  name: policy.name
  location: location
  identity: { type: 'SystemAssigned' }
  properties: {
    displayName: policy.title
    policyDefinitionId: definitions[i].id
    parameters: {
      folder: { value: folder }
      sha256Linux: { value: sha256Linux }
      sha256Windows: { value: sha256Windows }
    }
  }
}]

// Virtual Machine Contributor, which the definitions name too.
resource roles 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for (policy, i) in policies: {
  name: guid(subscription().id, policy.name, 'Virtual Machine Contributor')
  properties: {
    principalId: assignments[i].identity.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '9980e02c-c2be-4d73-94e8-173b1dc7cf3c')
  }
}]
