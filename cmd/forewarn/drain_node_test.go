package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeKubectl keeps a node in files: whether it is cordoned, and its annotations, a line each. It notes what it is asked to
// change, and fails where a file says so. What it is asked of the node it answers for the two templates of drain-node.sh.
const fakeKubectl = `if [ "$1" = --request-timeout=10s ]; then shift; fi
if [ -e "$DRILL/broken" ] || [ -e "$DRILL/broken-$1" ]; then echo "error: refused" >&2; exit 1; fi
case $1 in get | auth) ;; *) echo "$@" >>"$DRILL/told" ;; esac
case $* in
"auth whoami -o go-template="*) cat "$DRILL/whoami" ;;
"get node node-a -o go-template="*unschedulable*) if [ -e "$DRILL/cordoned" ]; then printf yes; fi ;;
"get node node-a -o go-template="*annotations*) echo example.com/zone; cat "$DRILL/annotations" ;;
"get node node-a") ;;
"patch node node-a -p {\"spec\":{\"unschedulable\":true}}" | "drain node-a "*) : >"$DRILL/cordoned" ;;
"patch node node-a -p {\"spec\":{\"unschedulable\":false}}") rm -f "$DRILL/cordoned" ;;
"annotate node node-a --overwrite drain.forewarn/"*=) echo "${5%=}" >>"$DRILL/annotations" ;;
"annotate node node-a drain.forewarn/"*-)
	grep -vxF "${4%-}" "$DRILL/annotations" >"$DRILL/left"
	cat "$DRILL/left" >"$DRILL/annotations" ;;
"auth can-i"*) ! grep -qxF "$*" "$DRILL/forbidden" ;;
*) echo "unexpected: kubectl $*" >&2; exit 99 ;;
esac`

// newNode makes a machine with a kubectl that knows the node node-a.
func newNode(t *testing.T) drill {
	t.Helper()
	d := newDrill(t)
	d.program("kubectl", fakeKubectl)
	d.write("annotations", "")
	d.write("forbidden", "")
	d.write("whoami", "node-a")
	return d
}

// node runs drain-node.sh as forewarn does about a change of an event.
func (d drill) node(change, event string, env ...string) (code int, last string) {
	return d.run("../helm/forewarn/files/drain-node.sh", nil, append([]string{"DRAIN_STATE=" + d.dir,
		"FOREWARN_CHANGE=" + change, "CE_SUBJECT=" + event, "FOREWARN_NOTICE_SECONDS=900", "FOREWARN_TEST="}, env...)...)
}

func (d drill) cordoned() bool {
	_, err := os.Stat(filepath.Join(d.dir, "cordoned"))
	return err == nil
}

// A node is marked, cordoned and drained when an event is announced, and uncordoned when it is over. It keeps no mark.
func TestDrainNodeCordonsDrainsAndUncordons(t *testing.T) {
	t.Parallel()
	d := newNode(t)
	code, last := d.node("scheduled", "A")
	d.want("announced", code, last, 0, "drained")
	want := "annotate node node-a --overwrite drain.forewarn/A=\n" +
		`patch node node-a -p {"spec":{"unschedulable":true}}` + "\n" +
		"drain node-a --ignore-daemonsets --delete-emptydir-data --timeout=600s"
	if got := d.read("told"); got != want || !d.cordoned() {
		t.Errorf("kubectl was asked %q, want %q", got, want)
	}
	code, last = d.node("vanished", "A")
	d.want("over", code, last, 0, "uncordoned")
	if got := d.read("annotations"); got != "" || d.cordoned() {
		t.Errorf("it is cordoned (%v), with the marks %q", d.cordoned(), got)
	}
	code, last = d.node("vanished", "A")
	d.want("over once more", code, last, 0, "the node was not cordoned for this event")
}

// A drain ends before the event begins, and within its limit. Other flags replace those of kubectl drain.
func TestDrainNodeEndsInTime(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ env, want string }{
		{"FOREWARN_NOTICE_SECONDS=0", "--ignore-daemonsets --delete-emptydir-data --timeout=600s"},
		{"FOREWARN_NOTICE_SECONDS=90", "--ignore-daemonsets --delete-emptydir-data --timeout=60s"},
		{"FOREWARN_NOTICE_SECONDS=10", "--ignore-daemonsets --delete-emptydir-data --timeout=1s"},
		{"DRAIN_RESERVE=890", "--ignore-daemonsets --delete-emptydir-data --timeout=10s"},
		{"DRAIN_LIMIT=20", "--ignore-daemonsets --delete-emptydir-data --timeout=20s"},
		{"DRAIN_FLAGS=--force --ignore-daemonsets", "--force --ignore-daemonsets --timeout=600s"},
	} {
		d := newNode(t)
		code, last := d.node("scheduled", "A", tt.env)
		d.want(tt.env, code, last, 0, "drained")
		if told := d.read("told"); !strings.HasSuffix(told, "\ndrain node-a "+tt.want) {
			t.Errorf("%s: kubectl was asked %q, want %s", tt.env, told, tt.want)
		}
	}
}

// A node that is out for two events comes back with the last of them.
func TestDrainNodeReturnsWithTheLastEvent(t *testing.T) {
	t.Parallel()
	d := newNode(t)
	for _, event := range []string{"A", "B"} {
		code, last := d.node("scheduled", event)
		d.want(event, code, last, 0, "drained")
	}
	code, last := d.node("updated", "A", "CE_AZSELF=false")
	d.want("the first no longer names the VM", code, last, 0, "the node stays cordoned, for another event")
	if !d.cordoned() {
		t.Error("it was uncordoned before its second event")
	}
	code, last = d.node("vanished", "B")
	d.want("the second is over", code, last, 0, "uncordoned")
}

// A node that somebody else has cordoned is drained, and stays cordoned.
func TestDrainNodeLeavesANodeThatSomebodyElseCordoned(t *testing.T) {
	t.Parallel()
	d := newNode(t)
	d.write("cordoned", "")
	code, last := d.node("scheduled", "A")
	d.want("announced", code, last, 0, "drained")
	code, last = d.node("vanished", "A")
	d.want("over", code, last, 0, "the node was not cordoned for this event")
	if !d.cordoned() {
		t.Error("it was uncordoned")
	}
}

// What fails says so with the exit code by which forewarn knows what to do, and can be repeated.
func TestDrainNodeSaysWhatFailed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		broken, change string
		code           int
		says           string
	}{
		{"broken-get", "scheduled", 75, "the API server does not answer, or refuses"},
		{"broken-auth", "scheduled", 75, "the API server does not answer, or refuses"},
		{"broken-annotate", "scheduled", 75, "node-a was not annotated"},
		{"broken-patch", "scheduled", 75, "node-a was not cordoned"},
		{"broken-drain", "scheduled", 1, "the node was not drained"},
		{"broken-get", "vanished", 75, "the API server does not answer, or refuses"},
		{"broken-patch", "vanished", 75, "the node was not uncordoned"},
		{"broken-annotate", "vanished", 75, "node-a was not annotated"},
	} {
		d := newNode(t)
		if tt.change == "vanished" {
			code, last := d.node("scheduled", "A")
			d.want("announced", code, last, 0, "drained")
		}
		d.write(tt.broken, "")
		code, last := d.node(tt.change, "A")
		d.want(tt.broken, code, last, tt.code, tt.says)
		if err := os.Remove(filepath.Join(d.dir, tt.broken)); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"scheduled": "drained", "vanished": "uncordoned"}[tt.change]
		code, last = d.node(tt.change, "A")
		d.want("again, after "+tt.broken, code, last, 0, want)
	}
}

// A test by forewarn send changes nothing, and names what is missing.
func TestDrainNodeNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		claim, env, forbidden string
		code                  int
		says                  string
	}{
		{"all is there", "FOREWARN_TEST=1", "", 0, "a test: nothing is done"},
		{"no state", "DRAIN_STATE=/nowhere", "", 78, `DRAIN_STATE is "/nowhere"; expected a directory to write to`},
		{"no number", "DRAIN_LIMIT=10m", "", 78, `DRAIN_LIMIT is "10m"; expected a number of seconds`},
		{"no event", "CE_SUBJECT=", "", 78, "no event: forewarn runs this"},
		{"no role", "FOREWARN_TEST=1", "auth can-i patch nodes", 78, "no right to patch nodes"},
		{"half a role", "FOREWARN_TEST=1", "auth can-i create pods --subresource=eviction --all-namespaces", 78,
			"no right to create pods --subresource=eviction --all-namespaces"},
	} {
		d := newNode(t)
		d.write("forbidden", tt.forbidden+"\n")
		code, last := d.node("scheduled", "A", "FOREWARN_TEST=1", tt.env)
		d.want(tt.claim, code, last, tt.code, tt.says)
		if told := d.read("told"); told != "" {
			t.Errorf("%s: kubectl was asked %q", tt.claim, told)
		}
	}
}

// A token that is not of a pod names no node.
func TestDrainNodeNeedsTheTokenOfItsPod(t *testing.T) {
	t.Parallel()
	d := newNode(t)
	d.write("whoami", "")
	code, last := d.node("scheduled", "A")
	d.want("no node", code, last, 78, "the token names no node; expected that of a pod, and Kubernetes 1.30 or later")
}

// Without kubectl in the image the script says so.
func TestDrainNodeNeedsKubectl(t *testing.T) {
	t.Parallel()
	d := newNode(t)
	if err := os.Remove(filepath.Join(d.dir, "kubectl")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	// Only what the script needs besides.
	for _, tool := range []string{"sh", "tr", "flock", "sed", "grep"} {
		where, err := exec.LookPath(tool)
		if err != nil {
			t.Skipf("no %s here", tool)
		}
		if err := os.Symlink(where, filepath.Join(d.dir, tool)); err != nil {
			t.Fatal(err)
		}
	}
	code, last := d.node("scheduled", "A", "PATH="+d.dir)
	d.want("no kubectl", code, last, 78, "kubectl is not in the image")
}
