//go:build !windows

package outbox

import bolt "go.etcd.io/bbolt"

// unmap leaves the mapping of a damaged file as it is: here a mapped file can be removed.
func unmap(*bolt.DB) {}
