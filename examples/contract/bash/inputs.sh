/usr/bin/python3 -c "
import json, os
print(\"size=\" + json.load(open(os.environ[\"MYCOJOBS_INPUTS\"]))[\"build\"][\"size\"])" >> "$MYCOJOBS_RESULT"
