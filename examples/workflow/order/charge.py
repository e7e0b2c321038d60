# Idempotent by its key: the bank charges a key once. The bank refuses the card "refused", and needs 15 seconds for the
# card "slow".
import json, os, time

wanted = json.loads(os.environ["MYCOJOBS_PARAMS"])
if wanted["card"] == "refused":
    raise RuntimeError("the card is refused")
if wanted["card"] == "slow":
    time.sleep(15)
print("charged", wanted["cents"], "cents as", wanted["key"])
result["charged"] = wanted["cents"]
