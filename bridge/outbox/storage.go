package outbox

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A Write is one key and what it gets; a nil Value deletes it.
type Write struct {
	Bucket, Key string
	Value       []byte
}

// Storage is where records are kept, and the only way to the disk. It is keys and values in buckets.
//
// Open, Write, Compact, SetAside and Close are called from one goroutine at a time. Read, Walk and Size may be called
// beside them, and may fail at any time. Nothing is called under a lock that anybody else needs, so each may take its
// time.
type Storage interface {
	// Open makes the storage usable, and does nothing if it is. It is called before anything else, and again after
	// anything failed. opened says that it was not open before, so that other things may be in it than before. An error
	// that wraps ErrLocked is final; with one that wraps ErrReadOnly, it can be read all the same.
	Open() (opened bool, err error)
	// Write writes all in one transaction: if it fails, none of them counts. They are ordered by bucket and key.
	Write(writes []Write) error
	// Read gives a value, nil if there is none.
	Read(bucket, key string) ([]byte, error)
	// Walk calls f for every key of the bucket from the given one on, in order, until it fails. f must not keep value.
	Walk(bucket, from string, f func(key string, value []byte) error) error
	// SetAside puts all that is there where nobody reads it but people, under a name that says why. Open then begins
	// anew.
	SetAside(why string, cause error) error
	// Compact makes the file smaller if that is worthwhile.
	Compact() error
	// Size is how many bytes it takes, as far as that is known without asking the disk.
	Size() int64
	Close() error
}

// The errors of a Storage that make a difference. Any other means: try again.
var (
	// ErrLocked says that another process has it open.
	ErrLocked = errors.New("locked by another forewarn")
	// ErrDamaged says that what is there can't be used. It is set aside, and what memory knows is written anew.
	ErrDamaged = errors.New("damaged")
	// ErrReadOnly says that it can be read and not be written.
	ErrReadOnly = errors.New("read-only")

	errNewer   = errors.New("written by a newer forewarn")
	errForeign = errors.New("another VM's")
)

// The buckets. As a key, a sequence number has 16 digits.
const (
	bucketMeta     = "meta"     // name → what the outbox needs for itself
	bucketValues   = "values"   // name → the owner's value
	bucketGroups   = "groups"   // group → sequence number of the latest change, space, the owner's state
	bucketOver     = "over"     // group → since when it is over
	bucketMarks    = "marks"    // id → Mark
	bucketEvents   = "events"   // seq → CloudEvent
	bucketHeads    = "heads"    // seq → head, while something refers to the CloudEvent
	bucketPending  = "pending"  // route/seq → Delivery
	bucketDead     = "dead"     // route/seq → Delivery
	bucketSettled  = "settled"  // seq/route → settlement
	bucketReceipts = "receipts" // group/route → receipt
	bucketRoutes   = "routes"   // route → when it went from the settings, "" while it is there

	metaFormat = "format"
	metaOwner  = "owner"
	metaLast   = "last" // sequence number
)

// isHistory says whether the bucket grows with what was delivered. Its keys sort by age.
func isHistory(bucket string) bool { return bucket == bucketEvents || bucket == bucketSettled }

// seqKey is a sequence number as a key.
func seqKey(seq uint64) string { return fmt.Sprintf("%016d", seq) }

// seqOf is the sequence number that a key begins with.
func seqOf(key string) (uint64, error) {
	digits, _, _ := strings.Cut(key, "/")
	return strconv.ParseUint(digits, 10, 64)
}

// splitKey splits the key of a delivery.
func splitKey(key string) (route string, seq uint64, err error) {
	i := strings.LastIndexByte(key, '/')
	if i < 0 {
		return "", 0, fmt.Errorf("%q is no key", key)
	}
	seq, err = seqOf(key[i+1:])
	return key[:i], seq, err
}
