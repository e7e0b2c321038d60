import json, os

print("order", json.loads(os.environ["MYCOJOBS_PARAMS"])["order"], "given back")
result["released"] = True
