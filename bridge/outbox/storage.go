package outbox

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A Write sets one key; a nil Value deletes it.
type Write struct {
	Bucket, Key string
	Value       []byte
}

// A Storage stores records as keys and values in buckets. It is the outbox's only access to the disk.
//
// Open, Write, Compact, SetAside and Close are called by one goroutine at a time, Read, Walk and Size concurrently.
// Each may fail at any time, and may take long, because none is called under a lock, but for Size, which must return at
// once.
type Storage interface {
	// Open opens the storage, and does nothing if it is open. It is called first, and again after any failure. opened
	// means that it was not open before, so its content may differ. After an error that wraps ErrReadOnly, the storage can
	// be read.
	Open() (opened bool, err error)
	// Write writes all of them in one transaction, or none. They are ordered by bucket and key.
	Write(writes []Write) error
	// Read returns a value; nil if there is none.
	Read(bucket, key string) ([]byte, error)
	// Walk calls f for every key of the bucket from the given one on, in order, until f fails. f must not keep value.
	Walk(bucket, from string, f func(key string, value []byte) error) error
	// SetAside moves the content away under a name that says why, for people to inspect. The next Open starts empty.
	SetAside(why string, cause error) error
	// Compact shrinks the storage if that is worthwhile.
	Compact() error
	// Size returns its size in bytes, as far as known without I/O.
	Size() int64
	Close() error
}

// The errors of a Storage that callers distinguish. Any other means: try again.
var (
	// ErrLocked means that another process has it open.
	ErrLocked = errors.New("locked by another forewarn")
	// ErrDamaged means that the content can't be used. It is set aside, and the content of memory is written anew.
	ErrDamaged = errors.New("damaged")
	// ErrReadOnly means that it can be read and not be written.
	ErrReadOnly = errors.New("read-only")

	errFormat  = errors.New("written by another version of forewarn")
	errForeign = errors.New("another VM's")
)

// The buckets. As a key, a sequence number has 16 digits.
const (
	bucketMeta     = "meta"     // name → what the outbox needs for itself
	bucketValues   = "values"   // name → the owner's value
	bucketGroups   = "groups"   // group → storedGroup, while it is open
	bucketEnded    = "ended"    // group → when it ended
	bucketMarks    = "marks"    // id → Mark
	bucketEvents   = "events"   // seq → CloudEvent
	bucketPending  = "pending"  // seq/route → Delivery
	bucketDead     = "dead"     // seq/route → Delivery
	bucketSettled  = "settled"  // seq/route → Result
	bucketReceipts = "receipts" // group/route → what its sink remembers
	bucketRoutes   = "routes"   // route → storedRoute
	bucketMutes    = "mutes"    // id → delivery.Mute

	metaFormat = "format"
	metaOwner  = "owner"
	metaLast   = "last" // sequence number
)

// isHistory reports whether the bucket holds history. The keys of such a bucket sort by age.
func isHistory(bucket string) bool { return bucket == bucketEvents || bucket == bucketSettled }

// seqKey returns a sequence number as a key.
func seqKey(seq uint64) string { return fmt.Sprintf("%016d", seq) }

// seqOf returns the sequence number that a key begins with.
func seqOf(key string) (uint64, error) {
	seq, _, err := splitStored(key)
	return seq, err
}

// deliveryKey returns the key of a record about a delivery.
func deliveryKey(seq uint64, route string) string { return seqKey(seq) + "/" + route }

// splitStored splits the key of a record about a delivery.
func splitStored(key string) (seq uint64, route string, err error) {
	digits, route, _ := strings.Cut(key, "/")
	seq, err = strconv.ParseUint(digits, 10, 64)
	return seq, route, err
}

// splitKey splits the key of a delivery as people see it: the route, a slash and the sequence number.
func splitKey(key string) (route string, seq uint64, err error) {
	i := strings.LastIndexByte(key, '/')
	if i < 0 {
		return "", 0, fmt.Errorf("%q is no key", key)
	}
	seq, err = seqOf(key[i+1:])
	return key[:i], seq, err
}
