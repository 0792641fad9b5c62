package deploy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// confined runs Triton and the gateway in a mount namespace as docker-compose.yml has them:
// one /dev/shm, a /tmp of Triton's kind, everything else read-only, each as its image's
// user with no capability. What leads to checkout and cache may be closed to these, so
// that it is laid anew.
const confined = `
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/root /mnt/cache
cp "$BINARY" /mnt/gateway
chmod 755 /mnt/gateway
mount --bind "$ROOT" /mnt/root
mount --bind "$CACHE" /mnt/cache
mount -t tmpfs -o "$TMP" tmpfs /tmp
mount -t tmpfs -o "$SHM" tmpfs /dev/shm
for path in "$ROOT" "$CACHE"; do
  top=/$(printf %s "$path" | cut -d/ -f2)
  case " /tmp $laid " in
  *" $top "*) ;;
  *) mount -t tmpfs -o mode=755 tmpfs "$top"; laid="$laid $top" ;;
  esac
  mkdir -p "$path"
done
mount --bind /mnt/root "$ROOT"
mount --bind /mnt/cache "$CACHE"
for path in "$ROOT" "$CACHE" $laid /; do mount -o remount,bind,ro "$path"; done
if touch /written 2>/dev/null; then echo 'the file system can be written to' >&2; exit 9; fi

as() {
  user=${1%:*} group=${1#*:}
  shift
  exec setpriv --reuid "$user" --regid "$group" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all env -i "$@"
}
as "$TRITON_USER" HOME=/tmp PATH="$ROOT/build/triton:$PATH" MODEL_REPOSITORY="$ROOT/model_repository" \
  "$ROOT/deploy/triton/serve" --backend-directory="$ROOT/build/triton/backends" \
  --http-address=127.0.0.1 --http-port="$HTTP_PORT" --grpc-address=127.0.0.1 --grpc-port="$GRPC_PORT" \
  --metrics-address=127.0.0.1 --metrics-port="$TRITON_METRICS" &
triton=$!
as "$GATEWAY_USER" HOST=127.0.0.1 PORT=0 METRICS_PORT=0 MODELS=h1,m-optimus \
  MODEL_REPOSITORY="$ROOT/model_repository" TRITON_ADDRESS="127.0.0.1:$GRPC_PORT" /mnt/gateway serve &
gateway=$!
set +e
trap 'kill $gateway' TERM
wait $gateway
wait $gateway
code=$?
kill $triton
wait $triton || code=8
exit $code
`

// The two work as their users, on read-only file systems, with no capability, and
// share the memory; nothing is written that the services have no place for. Network
// and process namespaces, and what an engine adds, are not there.
func TestComposeConfined(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make the namespaces of a container")
	}
	project := compose(t, nil, composeFile)
	service := project.Services["triton"]
	_, tmp, _ := strings.Cut(service.Tmpfs[0], ":")
	cache, err := filepath.EvalSymlinks(absolute(t, "build/tools"))
	if err != nil {
		t.Fatal(err)
	}
	http := freePort(t)
	g := listening(t, exec.Command("unshare", "--mount", "bash", "-euc", "laid=; "+confined),
		"PATH="+os.Getenv("PATH"), "BINARY="+binary, "ROOT="+absolute(t), "CACHE="+filepath.Dir(cache),
		"TMP="+tmp, "SHM="+project.Volumes[mounted(service, "/dev/shm").Source].DriverOpts["o"],
		"TRITON_USER="+dockerfile(t, service.Build.Dockerfile).last().user,
		"GATEWAY_USER="+dockerfile(t, project.Services["gateway"].Build.Dockerfile).last().user,
		"HTTP_PORT="+http, "GRPC_PORT="+freePort(t), "TRITON_METRICS="+freePort(t),
	)
	await(t, g.url+"/readyz")
	embed(t, g.url, "h1")
	memory := fmt.Sprintf("/proc/%d/root/dev/shm/", g.command.Process.Pid)
	for mode, want := range map[os.FileMode]int{0o666: 200, 0o600: 500} {
		if got := registered(t, memory, http, mode); got != want {
			t.Errorf("Triton answers %d to a segment of the gateway's user with mode %o", got, mode)
		}
	}
	regions, err := filepath.Glob(memory + "triton-backend-*")
	if err != nil || len(regions) != 2 {
		t.Errorf("%d regions of backends in the shared memory, of two models: %v", len(regions), err)
	}
	if code := g.stop(t, 40*time.Second); code != 0 {
		t.Errorf("it ended with %d", code)
	}
}

// registered makes a segment of shared memory as the gateway's user could, and returns
// what Triton answers when it is told to use it.
func registered(t *testing.T, memory, port string, mode os.FileMode) int {
	t.Helper()
	name := fmt.Sprintf("segment-%o", mode)
	err := errors.Join(os.WriteFile(memory+name, make([]byte, 4096), 0o600), os.Chmod(memory+name, mode), os.Chown(memory+name, 65534, 65534))
	if err != nil {
		t.Fatal(err)
	}
	response, err := prober.Post("http://127.0.0.1:"+port+"/v2/systemsharedmemory/region/"+name+"/register", "application/json",
		strings.NewReader(fmt.Sprintf(`{"key": "/%s", "offset": 0, "byte_size": 4096}`, name)))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}
