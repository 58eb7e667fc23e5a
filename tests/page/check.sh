#!/usr/bin/env bash
# Checks the HTML pages of `shadowgraph draw -o page.html` and `shadowgraph plan -o DIR`: that the committed bundle is
# up to date; its types, lint and unit tests; and pages of models in a browser. Skips checks without npm or Chromium.
#
#   tests/page/check.sh               runs all checks, with build/bin/shadowgraph
#   tests/page/check.sh --bundle      runs only checks without a browser
#   tests/page/check.sh --pictures    also updates docs/pictures/report-*.png
#   TOOL      path of the tool
#   CLICK_MS  time limit in milliseconds for handling a click (100); raise it on busy machines
set -euo pipefail
cd "$(dirname "$0")/../.."

tool=${TOOL:-build/bin/shadowgraph}
pages=build/pages
bundle_only=
pictures=()
for argument in "$@"; do
  case $argument in
    --bundle) bundle_only=yes ;;
    --pictures) pictures=(--pictures docs/pictures) ;;
    *) echo "check.sh: unknown argument $argument (known: --bundle, --pictures)" >&2; exit 2 ;;
  esac
done
say() { echo "page: $*"; }

if ! command -v npm >/dev/null; then
  say "skipped: npm is missing (scripts/setup.sh --test installs it)"
  exit 0
fi

say "checking bundle, types, lint and unit tests"
(
  cd viz/page
  npm ci --no-audit --no-fund --loglevel=error --ignore-scripts
  npm run --silent build
  if ! git diff --exit-code --stat -- dist; then
    echo "page: viz/page/dist is out of date; run 'npm run build' in viz/page and commit dist/" >&2
    exit 1
  fi
  npm run --silent types
  npm run --silent lint
  npm run --silent test
)
if [[ -n $bundle_only ]]; then exit 0; fi

chromium=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || true)}
if [[ -z $chromium ]]; then
  say "browser tests skipped: chromium is missing (scripts/setup.sh --test installs it)"
  exit 0
fi
if [[ ! -x $tool ]]; then
  echo "page: $tool does not exist; run 'make build', or set TOOL" >&2
  exit 1
fi

say "testing pages of models in $chromium"
rm -rf $pages
mkdir -p $pages/graphs
for model in resnet50 llama3_8b unet bert_base; do
  "$tool" draw $model --mode train -o $pages/$model.html
done
"$tool" draw llama3_70b --mode train --optimizer adamw -o $pages/llama3_70b.html
"$tool" draw resnet50 -o $pages/resnet50_forward.html
"$tool" capture resnet50 --mode train -o $pages/graphs/resnet50.sg
"$tool" compare $pages/graphs/resnet50.sg resnet50 --mode train --checkpoint 'layer*' -o $pages/compare.html
"$tool" plan llama3_70b --devices 256xh100 --tokens-per-step 4Mi --seq 8192 --pipeline 8 -o $pages/plan >/dev/null 2>&1
mv $pages/plan/report.html $pages/plan.html
"$tool" compare resnet50 bert_base --mode train -o $pages/compare_others.html
"$tool" profile $pages/graphs/resnet50.sg -o $pages/profile --export nodes-csv >/dev/null
"$tool" compare $pages/profile/profile.json resnet50 --mode train --checkpoint 'layer*' -o $pages/saved.html
"$tool" draw $pages/graphs/resnet50.sg --color $pages/profile/nodes.csv:live_bytes -o $pages/given.html
python3 bench/million_nodes.py $pages/graphs/million.sg
"$tool" draw $pages/graphs/million.sg -o $pages/million.html
rm $pages/graphs/million.sg
# Names that require escaping, one of them a megabyte long.
python3 - $pages/graphs/hostile.sg <<'PYTHON'
import sys


def quoted(name):
    return '"' + "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\x{c:02x}" for c in name) + '"'


names = [b'</script><img src=x onerror="window.broken=1">', b"a\"b'c\\d{e}|f<g>&amp;", "\u202egnp.exe".encode(),
         b"bell\x07\x00nul", b"\xff\xfe", "größe 漢字".encode(), b"deep." * 209_715 + b"end", b"__proto__", b"constructor", b""]
lines = ["shadowgraph 1 libtorch 2.13.0", 'meta "model" = ' + quoted(b"</title><script>window.broken=2</script> \xe2\x80\xae"),
         "operator aten::relu(Tensor self) -> Tensor"]
lines += [f"s{i} = 4096 cpu {'temporary' if i else 'input'}" for i in range(len(names) + 1)]
lines += [f"r{i + 1} = module {quoted(name)} {quoted(name[:50])} call 0 in r0" for i, name in enumerate(names)]
lines += [f"n0: %0 = sg::input(name={quoted(names[0])}) : f32[32,32] @s0"]
lines += [f"n{i + 1}: %{i + 1} = aten::relu(self=%{i}) : f32[32,32] @s{i + 1} | r{i + 1} {quoted(name)}"
          for i, name in enumerate(names)]
open(sys.argv[1], "w").write("\n".join(lines) + "\n")
PYTHON
"$tool" draw $pages/graphs/hostile.sg -o $pages/hostile.html
CHROMIUM=$chromium node viz/page/build/tests/browser/run.mjs $pages "${pictures[@]}"
