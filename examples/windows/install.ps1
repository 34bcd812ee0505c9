# Installs forewarn as a service, or updates it. Put forewarn.exe and forewarn.yaml beside this script, and run it as
# administrator: by hand, by the Custom Script Extension, as a startup script of a Group Policy, or by Ansible's
# win_shell. With -Sha256 it refuses another forewarn.exe. Settings that are wrong change nothing.
param([string]$Sha256)
$ErrorActionPreference = 'Stop'
$program = Join-Path $env:ProgramFiles 'forewarn'
$settings = Join-Path $env:ProgramData 'forewarn'
$forewarn = Join-Path $program 'forewarn.exe'

$new = Join-Path $PSScriptRoot 'forewarn.exe'
$newSettings = Join-Path $PSScriptRoot 'forewarn.yaml'
foreach ($file in $new, $newSettings) { if (-not (Test-Path $file)) { throw "$file is missing" } }
$found = (Get-FileHash -Algorithm SHA256 $new).Hash
if ($Sha256 -and $found -ne $Sha256) { throw "forewarn.exe has the SHA-256 $found" }
& $new check --config $newSettings
if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE } # nothing has changed yet

New-Item -ItemType Directory -Force -Path $program, $settings | Out-Null
if (Test-Path $forewarn) { & $forewarn service stop } # Windows replaces no program that runs
Copy-Item $new $forewarn
Copy-Item $newSettings $settings

foreach ($step in 'check', 'service install', 'service start') {
    & $forewarn $step.Split(' ')
    if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE }
}
