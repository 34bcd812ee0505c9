package page

import "time"

// A processUse holds the resource usage of this process; 0 for what the system does not report.
type processUse struct {
	cpu                 float64 // seconds
	files, maxFiles     float64
	virtual, maxVirtual float64 // bytes
	resident            float64 // bytes
	received, sent      float64 // bytes, in the network namespace of the process
}

// processFamilies returns the metrics of this process under the names that Prometheus' client libraries use, without
// those that the system does not report.
func processFamilies(started time.Time) []*family {
	u := readProcessUse()
	var all []*family
	for _, f := range []struct {
		kind, name, help string
		value            float64
	}{
		{"counter", "cpu_seconds_total", "Total user and system CPU time spent in seconds.", u.cpu},
		{"gauge", "open_fds", "Number of open file descriptors.", u.files},
		{"gauge", "max_fds", "Maximum number of open file descriptors.", u.maxFiles},
		{"gauge", "virtual_memory_bytes", "Virtual memory size in bytes.", u.virtual},
		{"gauge", "virtual_memory_max_bytes", "Maximum amount of virtual memory available in bytes.", u.maxVirtual},
		{"gauge", "resident_memory_bytes", "Resident memory size in bytes.", u.resident},
		{"gauge", "start_time_seconds", "Start time of the process since unix epoch in seconds.", seconds(started)},
		{"counter", "network_receive_bytes_total", "Number of bytes received by the process over the network.", u.received},
		{"counter", "network_transmit_bytes_total", "Number of bytes sent by the process over the network.", u.sent},
	} {
		m := &family{name: "process_" + f.name, help: f.help, kind: f.kind}
		if f.value > 0 {
			m.add(f.value)
		}
		all = append(all, m)
	}
	return all
}
