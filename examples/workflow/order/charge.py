# Idempotent by its key: the bank charges a key once. The card "refused" is refused, as the bank would say it.
import json, os

wanted = json.loads(os.environ["MYCOJOBS_PARAMS"])
if wanted["card"] == "refused":
    raise RuntimeError("the card is refused")
print("charged", wanted["cents"], "cents as", wanted["key"])
result["charged"] = wanted["cents"]
