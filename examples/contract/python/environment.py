import os

result["greeting"] = os.environ["GREETING"]
result["job"] = os.environ["MYCOJOBS_JOB_ID"]
