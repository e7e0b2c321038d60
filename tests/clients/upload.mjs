// Uploads a file and prints {reference, result}: the result of a job that reads it. ONLY_UPLOAD: without a job.
import { Client } from "../../clients/node/index.js";

const client = new Client();
const script = "import hashlib\nresult['sha256'] = hashlib.sha256(open('/job/files/data/big.bin', 'rb').read()).hexdigest()";
try {
  const upload = await client.upload(process.argv[2]);
  const job = process.env.ONLY_UPLOAD ? undefined : await client.submit(script, { files: { "data/big.bin": upload } });
  console.log(JSON.stringify({ reference: upload.reference, result: await job?.result({ timeout: "1m" }) }));
} catch (error) {
  console.log(JSON.stringify({ error: error.message }));
}
