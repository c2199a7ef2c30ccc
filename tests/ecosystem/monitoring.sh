#!/usr/bin/env bash
# Monitoring by other programs: Debian's Prometheus scrapes a registry and a daemon and evaluates the rules,
# promtool checks metrics and rules, Debian's Chromium shows the page at two widths and with 1000 hosts, and a
# page with names full of markup does nothing but show them.
#
# Needs network access to a Debian mirror for what is not installed (prometheus is only unpacked, chromium is
# installed, as root). One minute. `--gate` leaves the browser out: 30 s. Pictures stay in CKPT_PICTURES.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

work=$(mktemp -d)
pictures=${CKPT_PICTURES:-$work/pictures}
mkdir -p "$pictures"
started=()
ended() {
    [ -z "${up:-}" ] || "$program" grid down --dir "$work/grid" >/dev/null 2>&1 || true
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap ended EXIT

# Prometheus from the Debian package, unpacked: installing it would start a service.
prometheus=$(command -v prometheus || true)
promtool=$(command -v promtool || true)
if [ -z "$prometheus" ] || [ -z "$promtool" ]; then
    kept=$roots/prometheus
    if [ ! -x "$kept/usr/bin/promtool" ]; then
        mkdir -p "$kept"
        (cd "$work" && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; }) \
            >"$work/apt.log" 2>&1 || missing "Prometheus: the Debian package can't be fetched"
        dpkg-deb -x "$work"/prometheus_*.deb "$kept"
    fi
    prometheus=$kept/usr/bin/prometheus promtool=$kept/usr/bin/promtool
fi

say "rules"
"$promtool" check rules "$top/packaging/monitoring/ckpt-rules.yml" >/dev/null
(cd "$top/packaging/monitoring" && "$promtool" test rules ckpt-rules-test.yml) >"$work/rules.log" 2>&1 ||
    { cat "$work/rules.log"; die "promtool test rules"; }

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
program=$(program)
ln -s "$program" "$work/ckpt-store"
registry=$(free_port) host=$(free_port) scraper=$(free_port)
# cargo, which makes the pages below, has its own things in the present home.
export RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup} CARGO_HOME=${CARGO_HOME:-$HOME/.cargo}
export HOME=$work/home XDG_CONFIG_HOME=$work/home/config XDG_DATA_HOME=$work/home/data CKPT_STATE_DIR=$work/state
unset CKPT_GRID CKPT_AUTHORITY
mkdir -p "$HOME"
cd "$work"

"$program" grid init --name lab --registry "127.0.0.1:$(free_port)" >init.log
"$work/ckpt-store" registry --metrics "127.0.0.1:$registry" 2>registry.log &
started+=($!)
fetched() { curl -fsS "$@" >/dev/null 2>&1; }
wait_for 30 "the registry answers" fetched "http://127.0.0.1:$registry/metrics"
token=$(head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n')
(umask 077 && printf '%s\n' "$token" >token)
invitation=$("$program" --json grid invite --count 1 --submitters 0 |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["tokens"][0])')
"$work/ckpt-store" join "$invitation" --name h1 --data h1 >join.log
"$work/ckpt-store" serve --data h1 --listen 127.0.0.1:0 --guest-socket "$work/guests.sock" \
    --metrics "127.0.0.1:$host" --metrics-token token 2>h1.log &
started+=($!)
wait_for 30 "the daemon answers" fetched -H "Authorization: Bearer $token" "http://127.0.0.1:$host/metrics"
! fetched "http://127.0.0.1:$host/metrics" || die "the daemon asks for no token"

say "promtool check metrics"
curl -fsS "http://127.0.0.1:$registry/metrics" | "$promtool" check metrics
curl -fsS -H "Authorization: Bearer $token" "http://127.0.0.1:$host/metrics" | "$promtool" check metrics

say "a save says how it went"
"$program" grid up --dir "$work/grid" --hosts 5 >up.log
up=1
head -c 1000000 /dev/urandom >image
"$program" --grid "$work/grid/grid.toml" save --job 42 --metrics-file train.prom image >saved.log
"$promtool" check metrics <train.prom
"$program" --grid "$work/grid/grid.toml" save --job 42 --metrics-file train.prom image >saved.log
"$promtool" check metrics <train.prom

say "Prometheus scrapes both"
cat >prometheus.yml <<END
global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: ["$top/packaging/monitoring/ckpt-rules.yml"]
scrape_configs:
  - job_name: ckpt-registry
    static_configs: [{ targets: ["127.0.0.1:$registry"] }]
  - job_name: ckpt-store
    authorization: { credentials_file: "$work/token" }
    static_configs: [{ targets: ["127.0.0.1:$host"] }]
END
"$prometheus" --config.file prometheus.yml --storage.tsdb.path tsdb --web.listen-address "127.0.0.1:$scraper" 2>prometheus.log &
started+=($!)
asked() { curl -fsS --get --data-urlencode "query=$1" "http://127.0.0.1:$scraper/api/v1/query" 2>/dev/null; }
is() { [ "$(asked "$1" | python3 -c 'import json, sys; r = json.load(sys.stdin)["data"]["result"]; print(r[0]["value"][1] if r else "none")' 2>/dev/null)" = "$2" ]; }
wait_for 30 "both are up" is 'count(up == 1)' 2
wait_for 30 "the registry knows the host" is 'ckpt_registry_hosts{state="alive"}' 1
is 'ckpt_store_stance{stance="open"} + ignoring(stance) ckpt_store_stance{stance="closed"}' 1 ||
    is 'ckpt_store_stance{stance="stands_back"}' 1 || die "no stance holds"
is 'count(ckpt_store_fsync_seconds_bucket) > bool 10' 1 || die "the histogram was not read"
curl -fsS "http://127.0.0.1:$scraper/api/v1/rules" | python3 -c '
import json, sys
rules = [r for g in json.load(sys.stdin)["data"]["groups"] for r in g["rules"]]
assert len(rules) >= 10 and all(r["health"] in ("ok", "unknown") for r in rules), rules'
curl -fsS "http://127.0.0.1:$scraper/api/v1/targets" | python3 -c '
import json, sys
targets = json.load(sys.stdin)["data"]["activeTargets"]
assert all(t["lastScrapeDuration"] < 1 for t in targets), targets
print("scrapes took", sorted(round(t["lastScrapeDuration"] * 1000, 1) for t in targets), "ms")'

if [ "${1:-}" = --gate ]; then
    say "all of it passed, without the browser"
    exit
fi

chromium=$(command -v chromium || true)
if [ -z "$chromium" ]; then
    [ "$(id -u)" = 0 ] || missing "the page in a browser: chromium is not installed"
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium >chromium.log 2>&1 ||
        missing "the page in a browser: chromium can't be installed"
    chromium=$(command -v chromium)
fi
browser() { "$chromium" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/profile" "$@" 2>>browser.log; }
shot() { # NAME WIDTH HEIGHT ADDRESS
    browser --window-size="$2,$3" --screenshot="$pictures/$1.png" "$4" >/dev/null
    [ -s "$pictures/$1.png" ] || die "no picture $1"
}

say "the page of the registry"
shot registry-wide 1280 1400 "http://127.0.0.1:$registry/"
shot registry-narrow 500 1600 "http://127.0.0.1:$registry/"

say "the dashboard of a submitter"
dashboard=$(free_port)
"$program" --grid "$work/grid/grid.toml" dashboard --listen "$dashboard" --max-age 1s 2>dashboard.log &
started+=($!)
wait_for 60 "the dashboard answers" fetched "http://127.0.0.1:$dashboard/"
shot dashboard-wide 1280 1400 "http://127.0.0.1:$dashboard/"
shot dashboard-narrow 500 1800 "http://127.0.0.1:$dashboard/"

say "1000 hosts, 200 hosts and 1000 jobs, and names full of markup"
mkdir pages
cat "$top"/health/src/{page,map}.css >pages/style.css
for page in many pool tricks; do
    cargo run --locked --quiet --manifest-path "$top/Cargo.toml" -p health --features view --example page -- "$page" \
        >"pages/$page.html" || die "no page $page"
done
if npm install --prefix "$work/axe" --no-audit --no-fund --ignore-scripts axe-core@4.14.1 puppeteer-core@24.43.1 >npm.log 2>&1; then
    (cd "$work/axe" && node "$here/pages.mjs" "$(command -v chromium)" "$pictures" "registry=http://127.0.0.1:$registry/" \
        "dashboard=http://127.0.0.1:$dashboard/" "many=file://$work/pages/many.html" \
        "pool=file://$work/pages/pool.html" "tricks=file://$work/pages/tricks.html") || die "axe found something"
else
    tail -n 5 npm.log >&2
    missing "axe on the pages, light, dark and on a phone: npm can't install axe-core and puppeteer-core"
fi
browser --dump-dom "file://$work/pages/tricks.html" >tricks.dom
# A script that ran would have renamed the page; an element that a name had opened would be in the tree.
grep -q '<title>needs attention: ' tricks.dom || die "the page was renamed"
! grep -Eqi '<(script|img|iframe)\b' tricks.dom || die "a name opened an element"
grep -q '&lt;script&gt;' tricks.dom || die "the name is not shown"
rows=$(browser --dump-dom "file://$work/pages/many.html" | grep -o '<th scope="row">' | wc -l)
[ "$rows" -ge 1000 ] || die "$rows rows for 1000 hosts"
# Nothing but lists and tables that scroll by themselves may be wider than a narrow page.
cat >"$work/width.html" <<END
<!doctype html><iframe id=f width=500 height=900 src="pages/many.html"></iframe><p id=r>-</p>
<script>f.onload = () => { const d = f.contentDocument.documentElement; r.textContent = "width " + d.scrollWidth + " of " + d.clientWidth }</script>
END
width=$(browser --allow-file-access-from-files --virtual-time-budget=5000 --dump-dom "file://$work/width.html" | grep -o 'width [0-9]* of [0-9]*')
read -r _ is _ most <<<"$width"
[ "${is:-9999}" -le "${most:-0}" ] || die "the narrow page scrolls sideways: $width"
say "all of it passed; pictures: $pictures"
[ -n "${CKPT_PICTURES:-}" ] || say "(CKPT_PICTURES=DIR keeps them)"
