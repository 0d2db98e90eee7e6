# Sets `go` to a Go that is new enough for the binding, or ends with 77: $GO, that of PATH, and what get_go.sh fetched.
for go in "${GO:-}" "$(command -v go)" "${QUIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quire}/go/bin/go"; do
  [ -x "$go" ] || continue
  version=$("$go" env GOVERSION)
  minor=$(printf '%s' "$version" | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
  if [ "${minor:-0}" -ge 24 ]; then return 0; fi
done
echo "there is no Go 1.24 or newer: set GO, or run tests/go/get_go.sh"
exit 77
