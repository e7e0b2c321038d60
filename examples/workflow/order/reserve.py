# MYCOJOBS_PARAMS has the parameters of the effect; the result is the payload of the receipt. Pass MYCOJOBS_INTENT to a
# real service as the idempotency key: it is the same for each run of the effect's job.
import json, os

wanted = json.loads(os.environ["MYCOJOBS_PARAMS"])
SHELVES = {"book": 100, "lamp": 5}
result["reserved"] = SHELVES.get(wanted["item"], 0) >= wanted["count"]
print("order", wanted["order"], "reserved" if result["reserved"] else "not in stock")
