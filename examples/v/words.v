// Counts the words in the artifacts of its dependencies (without dependencies: of its own source), and stores a report
// as an artifact for users and for later jobs of the flow:
//   mycojobs run examples/v/words.v
import os

fn main() {
	mut files := os.walk_ext(os.getenv('MYCOJOBS_INPUTS_DIR'), '.txt')
	if files.len == 0 {
		files = ['/job/main.v']
	}
	mut counts := map[string]int{}
	for file in files {
		text := os.read_file(file) or {
			eprintln('${file}: ${err}')
			exit(1)
		}
		for word in text.to_lower().fields() {
			counts[word]++
		}
	}
	mut words := counts.keys()
	words.sort()
	mut report := []string{}
	for word in words {
		report << '${counts[word]} ${word}'
	}
	os.write_file(os.join_path(os.getenv('MYCOJOBS_ARTIFACTS'), 'words.txt'), report.join('\n') + '\n') or {
		panic(err)
	}
	println('${words.len} different words in ${files.len} file(s)')
	os.write_file(os.getenv('MYCOJOBS_RESULT'), 'words=${words.len}\n') or { panic(err) }
}
