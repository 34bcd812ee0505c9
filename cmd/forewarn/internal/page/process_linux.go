package page

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// readProcessUse reads the resource usage from the kernel.
func readProcessUse() (u processUse) {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) == nil {
		u.cpu = float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
	}
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		u.maxFiles = float64(limit.Cur)
	}
	if syscall.Getrlimit(syscall.RLIMIT_AS, &limit) == nil {
		u.maxVirtual = float64(limit.Cur)
	}
	if dir, err := os.Open("/proc/self/fd"); err == nil {
		names, _ := dir.Readdirnames(0)
		dir.Close()
		u.files = float64(len(names) - 1) // minus dir itself
	}
	if statm, err := os.ReadFile("/proc/self/statm"); err == nil {
		f := append(strings.Fields(string(statm)), "", "")
		page := float64(os.Getpagesize())
		u.virtual, u.resident = parseNumber(f[0])*page, parseNumber(f[1])*page
	}
	if netstat, err := os.ReadFile("/proc/self/net/netstat"); err == nil {
		u.received, u.sent = octets(string(netstat))
	}
	return u
}

// octets returns InOctets and OutOctets of the table IpExt. Its first line names the columns, its second has the
// numbers.
func octets(netstat string) (in, out float64) {
	var names []string
	for line := range strings.Lines(netstat) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "IpExt:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i := range min(len(names), len(f)) {
			switch names[i] {
			case "InOctets":
				in = parseNumber(f[i])
			case "OutOctets":
				out = parseNumber(f[i])
			}
		}
	}
	return in, out
}

// parseNumber parses a number; 0 for anything else.
func parseNumber(text string) float64 {
	n, _ := strconv.ParseFloat(text, 64)
	return n
}
