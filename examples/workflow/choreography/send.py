import json, os

letter = json.loads(os.environ["MYCOJOBS_PARAMS"])
print("to", letter["to"] + ":", letter["text"])
result["sent"] = True
