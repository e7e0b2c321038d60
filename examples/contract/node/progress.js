require("fs").appendFileSync(process.env.MYCOJOBS_PROGRESS, "0.5 half\n");
