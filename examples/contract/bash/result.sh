cat > "$MYCOJOBS_RESULT" <<"EOF"
{"text": "grüße & more", "number": 42, "list": [1, "two", null]}
EOF
