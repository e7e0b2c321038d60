if true; then (
