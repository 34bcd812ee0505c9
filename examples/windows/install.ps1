# Installs forewarn as a service, or updates it. Put forewarn.exe and forewarn.yaml beside this script, and run it as
# administrator: by hand, by the Custom Script Extension, as a startup script of a Group Policy, or by Ansible's
# win_shell. With -Sha256 it refuses another forewarn.exe.
param([string]$Sha256)
$ErrorActionPreference = 'Stop'
$program = Join-Path $env:ProgramFiles 'forewarn'
$settings = Join-Path $env:ProgramData 'forewarn'
$forewarn = Join-Path $program 'forewarn.exe'

$found = (Get-FileHash -Algorithm SHA256 (Join-Path $PSScriptRoot 'forewarn.exe')).Hash
if ($Sha256 -and $found -ne $Sha256) { throw "forewarn.exe has the SHA-256 $found" }
New-Item -ItemType Directory -Force -Path $program, $settings | Out-Null
if (Test-Path $forewarn) { & $forewarn service stop } # Windows replaces no program that runs
Copy-Item (Join-Path $PSScriptRoot 'forewarn.exe') $forewarn
Copy-Item (Join-Path $PSScriptRoot 'forewarn.yaml') $settings

foreach ($step in 'check', 'service install', 'service start') {
    & $forewarn $step.Split(' ')
    if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE }
}
