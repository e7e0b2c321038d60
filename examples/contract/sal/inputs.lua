result.size = inputs.build.size
