# Counts the outcomes of each period once, moves the thresholds, and deletes the records.
set -eu
mkdir -p batches

while sleep "$PERIOD"; do
  test -e header.csv || head -n 1 outcomes.csv > header.csv 2>/dev/null || continue  # the server has not started yet
  batch="batches/$(date -u +%Y-%m-%dT%H%M%S).csv"
  # the server begins a new file; a period without a record is a batch too
  mv outcomes.csv "$batch" 2>/dev/null || cp header.csv "$batch"
  for batch in batches/*.csv; do
    # the first batch fixes budget and steps; the name of the file is that of the batch, which is counted once
    set -- --state monitor.json -o following.dpscp --report monitor.html
    test -e monitor.json || set -- "$@" --epsilon 0.5 --delta 1e-6 --follow 1
    status=0
    dpscp monitor demo/model.dpscp "$batch" "$@" || status=$?
    case $status in 0 | 4) rm "$batch" ;; esac  # 4 is an alarm; after an error the records stay
  done
done
