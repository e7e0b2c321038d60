# Programs that compile at run time and therefore need memory that is writable and executable. Their jobs have the
# policy that docs/executors/command.md gives to node.
seq 1 20000 >numbers
# nodejs
t node1 'node -e "console.log([3,1,2].sort().join())"'
t node2 'node -e "console.log(require(\"child_process\").execSync(\"echo hi\").toString().trim())"'
t node3 'node -e "const fs=require(\"fs\");fs.copyFileSync(\"numbers\",\"n1\");fs.cpSync(\"numbers\",\"n2\");console.log(fs.statSync(\"n1\").size,fs.statSync(\"n2\").size)"'
t node4 'node -e "const {Worker}=require(\"worker_threads\");new Worker(\"require(\\\"worker_threads\\\").parentPort.postMessage(4)\",{eval:true}).on(\"message\",console.log)"'
t node5 'echo "process.on(\"message\",m=>{process.send(m+1);process.disconnect()})" >child.js; node -e "const c=require(\"child_process\").fork(\"child.js\");c.on(\"message\",m=>console.log(m));c.send(1)"'
t node6 'node -e "require(\"fs\").createReadStream(\"numbers\").pipe(require(\"zlib\").createGzip()).pipe(require(\"fs\").createWriteStream(\"n.gz\")).on(\"finish\",()=>console.log(\"ok\"))" && zcat n.gz | tail -1'
t node7 'node -e "console.log(require(\"crypto\").createHash(\"sha256\").update(\"x\").digest(\"hex\").slice(0,8))"'
t node8 'node -e "process.setuid(process.getuid());process.setgid(process.getgid());console.log(process.getuid()===process.geteuid())"'
t node9 'node -e "require(\"net\").connect(1,\"127.0.0.1\").on(\"error\",e=>console.log(e.syscall))"'
t node10 'node -e "const w=require(\"fs\").watch(\".\",()=>{w.close();console.log(\"seen\")});require(\"fs\").writeFileSync(\"watched\",\"x\")"; node -e "process.exit(5)"; echo $?'
# default-jdk-headless
printf 'public class M { public static void main(String[] a) throws Exception { System.out.println(a.length); } }\n' >M.java
t java1 'javac M.java && java -cp . M a b'
t java2 'java M.java x'
t java3 'printf "class T { public static void main(String[] a) throws Exception { var t = new Thread(() -> System.out.println(1)); t.start(); t.join(); } }" >T.java && java T.java'
t java4 'printf "class P { public static void main(String[] a) throws Exception { var p = new ProcessBuilder(\"echo\", \"hi\").inheritIO().start(); System.out.println(p.waitFor()); } }" >P.java && java P.java'
t java5 'printf "import java.nio.file.*; class F { public static void main(String[] a) throws Exception { Files.copy(Path.of(\"numbers\"), Path.of(\"j1\")); System.out.println(Files.size(Path.of(\"j1\"))); } }" >F.java && java F.java'
t java6 'jar cf m.jar M.class && jar tf m.jar | wc -l && java -cp m.jar M'
t java7 'echo "System.out.println(40+2)" | jshell -s - 2>&1 | tail -1'
t java8 'printf "import java.nio.channels.*; class L { public static void main(String[] a) throws Exception { try (var f = new java.io.RandomAccessFile(\"lk\", \"rw\"); var l = f.getChannel().lock()) { System.out.println(l.isValid()); } } }" >L.java && java L.java'
t java9 'printf "import java.nio.channels.*; import java.nio.file.*; class C { public static void main(String[] a) throws Exception { try (var i = FileChannel.open(Path.of(\"numbers\")); var o = Channels.newChannel(System.out)) { System.out.println(i.transferTo(0, 10, o)); } } }" >C.java && java C.java'
t java10 'printf "class S { public static void main(String[] a) throws Exception { int s = 0; for (int i = 0; i < 20000000; i++) s += i %% 7; System.out.println(s); } }" >S.java && java -XX:+UseG1GC -Xmx128m S.java; printf "class X { public static void main(String[] a) { System.exit(5); } }" >X.java; java X.java; echo $?'
