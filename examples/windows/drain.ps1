# Stops a service while Azure's events are open for this VM, and starts it again after the last of them. An error ends
# the script with exit code 1, and forewarn runs it again. Stopping a service takes an administrator: run forewarn as
# LocalSystem for this (sc.exe config forewarn obj= LocalSystem). It has never run on a real Windows: try it first.
$ErrorActionPreference = 'Stop'
$service = 'W3SVC'
$open = Join-Path $env:ProgramData 'forewarn\drained' # has a file for each event that is open

if ($env:FOREWARN_TEST) {
    "a test: $service stays as it is"
    exit 0
}
New-Item -ItemType Directory -Force -Path $open | Out-Null
$file = Join-Path $open $env:CE_SUBJECT
if ($env:FOREWARN_CHANGE -eq 'vanished') {
    if (Test-Path $file) { Remove-Item $file }
    if (Get-ChildItem $open) {
        "$service stays stopped: another event is open"
    } else {
        Start-Service $service
        "$service is started"
    }
} else {
    Set-Content $file $env:CE_AZEVENTTYPE
    Stop-Service $service
    "$service is stopped"
}
