package page

import (
	"testing"
	"time"
)

// On Linux the process metrics are those of Prometheus' own client libraries.
func TestProcessMetrics(t *testing.T) {
	t.Parallel()
	started := time.Unix(1e9, 0)
	for name, want := range map[string]struct{ least, most float64 }{
		"cpu_seconds_total":            {0.001, 1e6},
		"open_fds":                     {3, 1e5},
		"max_fds":                      {4, 1 << 40},
		"virtual_memory_bytes":         {10 << 20, 1 << 50},
		"virtual_memory_max_bytes":     {10 << 20, 1 << 64},
		"resident_memory_bytes":        {1 << 20, 1 << 40},
		"start_time_seconds":           {1e9, 1e9},
		"network_receive_bytes_total":  {1, 1 << 62},
		"network_transmit_bytes_total": {1, 1 << 62},
	} {
		found := false
		for _, f := range processFamilies(started) {
			if f.name != "process_"+name {
				continue
			}
			found = true
			if v := f.at(nil).value; v < want.least || v > want.most {
				t.Errorf("process_%s is %v, want %v to %v", name, v, want.least, want.most)
			}
		}
		if !found {
			t.Errorf("there is no process_%s", name)
		}
	}
}

// The octets are found by the names of their columns. Damaged tables give none.
func TestOctets(t *testing.T) {
	t.Parallel()
	const table = "TcpExt: InOctets OutOctets\nTcpExt: 1 2\nIpExt: InNoRoutes OutOctets InOctets\nIpExt: 5 70 60\n"
	for text, want := range map[string][2]float64{
		table: {60, 70}, "": {}, "IpExt: InOctets\n": {}, "IpExt: InOctets OutOctets\nIpExt: 3": {3,
			0}, "IpExt: InOctets\nIpExt: x": {},
	} {
		if in, out := octets(text); in != want[0] || out != want[1] {
			t.Errorf("octets(%q) = %v, %v, want %v", text, in, out, want)
		}
	}
}
