echo "it broke" >&2
exit 3
