# Gives back what was charged under the key, and lets nothing be charged under it any more.
import json, os

print("refunded", json.loads(os.environ["MYCOJOBS_PARAMS"])["key"])
result["refunded"] = True
