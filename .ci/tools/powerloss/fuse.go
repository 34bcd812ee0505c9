package main

import (
	"context"
	"maps"
	"slices"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// These methods are the file system as the kernel asks for it.

func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	n.attr(&out.Attr)
	return 0
}

func (n *node) attr(a *fuse.Attr) {
	a.Mode = n.mode
	a.Size = uint64(len(n.content))
	a.Nlink = 1
}

func (n *node) Setattr(ctx context.Context, _ fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return n.act(ctx, func() { n.set(in, out) })
}

func (n *node) set(in *fuse.SetAttrIn, out *fuse.AttrOut) {
	if size, ok := in.GetSize(); ok {
		if grow := int64(size) - int64(len(n.content)); grow > 0 {
			n.put(write{int64(len(n.content)), make([]byte, grow)})
		} else {
			n.put(write{at: int64(size)})
		}
	}
	if mode, ok := in.GetMode(); ok {
		n.mode = mode & 0o7777
	}
	n.attr(&out.Attr)
}

// child makes a node of that name.
func (n *node) child(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) *fs.Inode {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	made := &node{disk: n.disk, mode: mode & 0o7777}
	if mode&syscall.S_IFMT == syscall.S_IFDIR {
		made.now, made.synced = map[string]*node{}, map[string]*node{}
	}
	inode := n.NewPersistentInode(ctx, made, fs.StableAttr{Mode: mode & syscall.S_IFMT})
	n.now[name] = made
	n.disk.moves = append(n.disk.moves, move{{n, name, made}})
	made.attr(&out.Attr)
	return inode
}

func (n *node) Create(
	ctx context.Context, name string, _, mode uint32, out *fuse.EntryOut,
) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	return n.child(ctx, name, mode&0o7777|syscall.S_IFREG, out), nil, 0, 0
}

func (n *node) Mknod(
	ctx context.Context, name string, mode, _ uint32, out *fuse.EntryOut,
) (*fs.Inode, syscall.Errno) {
	return n.child(ctx, name, mode, out), 0 // a socket, mostly
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if n == n.disk.root && n.disk.command(name) {
		return nil, syscall.ECANCELED // there is no such directory
	}
	return n.child(ctx, name, mode&0o7777|syscall.S_IFDIR, out), 0
}

// command does what the making of a directory in the root asks for, if it is a command to the disk.
func (d *disk) command(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch name {
	case aheadName:
		d.ahead, d.left = true, d.random.IntN(soon)
	case lossName:
		d.lose()
	default:
		return false
	}
	return true
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	return n.act(ctx, func() {
		delete(n.now, name)
		n.disk.moves = append(n.disk.moves, move{{n, name, nil}})
	})
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	n.disk.mu.Lock()
	full := len(n.now[name].now) > 0
	n.disk.mu.Unlock()
	if full {
		return syscall.ENOTEMPTY
	}
	return n.Unlink(ctx, name)
}

func (n *node) Rename(
	ctx context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32,
) syscall.Errno {
	if flags&fs.RENAME_EXCHANGE != 0 {
		return syscall.EINVAL
	}
	return n.act(ctx, func() {
		moved, parent := n.now[name], to.(*node)
		delete(n.now, name)
		parent.now[newName] = moved
		n.disk.moves = append(n.disk.moves, move{{n, name, nil}, {parent, newName, moved}})
	})
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_TRUNC != 0 {
		return nil, 0, n.act(ctx, func() { n.put(write{}) })
	}
	return nil, 0, 0
}

func (n *node) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	from := min(off, int64(len(n.content)))
	return fuse.ReadResultData(dest[:copy(dest, n.content[from:])]), 0
}

func (n *node) Write(ctx context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	return uint32(len(data)), n.act(ctx, func() { n.put(write{off, slices.Clone(data)}) })
}

func (n *node) Fsync(ctx context.Context, _ fs.FileHandle, _ uint32) syscall.Errno {
	return n.act(ctx, n.sync)
}

// A directory is an open one, with what is left to list of it.
type directory struct {
	node *node
	rest []string
}

func (n *node) OpendirHandle(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	return &directory{n, slices.Sorted(maps.Keys(n.now))}, 0, 0
}

func (d *directory) Readdirent(context.Context) (*fuse.DirEntry, syscall.Errno) {
	d.node.disk.mu.Lock()
	defer d.node.disk.mu.Unlock()
	for len(d.rest) > 0 {
		name := d.rest[0]
		d.rest = d.rest[1:]
		if child := d.node.now[name]; child != nil {
			a := child.StableAttr()
			return &fuse.DirEntry{Name: name, Mode: a.Mode, Ino: a.Ino}, 0
		}
	}
	return nil, 0
}

func (d *directory) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	return d.node.Fsync(ctx, nil, flags)
}
