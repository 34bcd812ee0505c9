# Takes a machine out of a Traffic Manager profile before Azure touches it, and puts it back when that is over. Endpoint and
# machine have the same name. azure-automation.yaml starts it with the CloudEvent of forewarn.
#
# The Automation account has a managed identity with the role Traffic Manager Contributor on this one profile.
param([Parameter(Mandatory = $true)] [object] $WebhookData)
$ErrorActionPreference = 'Stop'

$change = ConvertFrom-Json $WebhookData.RequestBody
$endpoint = @{
    Name = $change.data.observer.name; Type = 'AzureEndpoints'; ProfileName = 'web'; ResourceGroupName = 'traffic'
}
Connect-AzAccount -Identity | Out-Null
switch ($change.data.change) {
    'scheduled' { Disable-AzTrafficManagerEndpoint @endpoint -Force | Out-Null }
    'vanished' { Enable-AzTrafficManagerEndpoint @endpoint | Out-Null }
}
Write-Output "$($change.data.change) $($change.data.event.EventType) of $($change.data.observer.name): $($change.data.event.EventId)"
