import glob
import os

import mycojobs

result["token"] = mycojobs.secret("token")
print(os.environ)
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/job/**", recursive=True):
    try:
        with open(path, "rb") as file:
            print(path, file.read())
    except OSError as error:
        print(path, error)
