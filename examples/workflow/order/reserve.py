# What is asked for comes in MYCOJOBS_PARAMS; the result is the payload of the receipt. Whoever asks a real service gives
# it MYCOJOBS_INTENT as its idempotency key: the same effect has the same one, however often its job is run.
import json, os

wanted = json.loads(os.environ["MYCOJOBS_PARAMS"])
SHELVES = {"book": 100, "lamp": 5}
result["reserved"] = SHELVES.get(wanted["item"], 0) >= wanted["count"]
print("order", wanted["order"], "reserved" if result["reserved"] else "not in stock")
