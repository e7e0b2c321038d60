# Refunds the charge with this key, and prevents later charges with it.
import json, os

print("refunded", json.loads(os.environ["MYCOJOBS_PARAMS"])["key"])
result["refunded"] = True
