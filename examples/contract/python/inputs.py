import mycojobs

result["size"] = mycojobs.inputs["build"]["size"]
