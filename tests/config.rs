//! Loading the configuration: sources, errors with their places, the reference page.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::path::PathBuf;
use std::time::Duration;

use seqcast::config::{
    self, Changes, Config, Cores, Flags, Identity, InboundRule, Listen, Loaded, Policy, Rate, Source,
};

/// A folder of this test's own, gone at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("seqcast-config-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn load(&self, text: &str) -> Result<Loaded, String> {
        let file = self.file("c.toml", text);
        config::load(Some(&file), std::iter::empty(), &Flags::default())
            .map_err(|e| self.short(&e.to_string()))
    }

    fn error(&self, text: &str) -> String {
        self.load(text).map(|l| l.config).expect_err(text)
    }

    fn short(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.0.display()), "")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn set(values: &[&str]) -> Flags {
    let split = |s: &&str| s.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())).unwrap();
    Flags { set: values.iter().map(split).collect(), ..Flags::default() }
}

fn with(variables: &[(&str, &str)], flags: &Flags) -> Result<Loaded, String> {
    let variables = variables.iter().map(|(k, v)| (k.to_string(), v.to_string()));
    config::load(None, variables, flags).map_err(|e| e.to_string())
}

fn value_of(loaded: &Loaded, key: &str) -> (String, String) {
    let line = loaded.lines().into_iter().find(|l| l.key == key).unwrap();
    (line.value, line.source.to_string())
}

#[test]
fn nothing_given_is_the_defaults() {
    let loaded = with(&[], &Flags::default()).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert!(loaded.sources.is_empty());
    assert!(loaded.lines().iter().all(|l| l.source == Source::Default));
}

#[test]
fn later_sources_win_key_by_key() {
    let folder = Folder::new("sources");
    let file = folder.file(
        "c.toml",
        "[server]\npath = \"/file\"\ncoalesce = \"1ms\"\nmax_connections = 7\n[inbound]\na = \"none\"\nb = \"none\"\n",
    );
    let variables = [
        ("SEQCAST_SERVER__PATH", "/variable"),
        ("SEQCAST_SERVER__COALESCE", "2ms"),
        ("SEQCAST_INBOUND__B", "sender"),
        ("HOME", "/x"),
        ("SEQCAST_SERVICE_HOST", "10.0.0.1"),
    ];
    let variables = variables.map(|(k, v)| (k.to_owned(), v.to_owned())).into_iter();
    let loaded = config::load(Some(&file), variables, &set(&["server.path=/flag"])).unwrap();
    assert_eq!(value_of(&loaded, "server.path"), ("\"/flag\"".into(), "flag --set server.path".into()));
    let variable = "environment variable SEQCAST_SERVER__COALESCE";
    assert_eq!(value_of(&loaded, "server.coalesce"), ("\"2ms\"".into(), variable.into()));
    assert_eq!(value_of(&loaded, "server.max_connections").1, format!("{}:4", file.display()));
    assert_eq!(value_of(&loaded, "server.pin"), ("true".into(), "default".into()));
    assert_eq!(loaded.config.inbound["a"], InboundRule::None);
    assert_eq!(loaded.config.inbound["b"], InboundRule::Sender);
    assert_eq!(value_of(&loaded, "inbound.b").1, "environment variable SEQCAST_INBOUND__B");
}

#[test]
fn named_flags_win_over_set() {
    let flags = Flags {
        listen: vec!["127.0.0.1:0".into(), "unix:/run/s".into()],
        admin: Some(String::new()),
        cores: Some("0-1".into()),
        ..set(&["server.cores=3", "admin.listen=127.0.0.1:5"])
    };
    let loaded = with(&[], &flags).unwrap();
    let tcp = Listen::Tcp("127.0.0.1:0".parse().unwrap());
    assert_eq!(loaded.config.server.listen, [tcp, Listen::Unix("/run/s".into())]);
    assert_eq!(loaded.config.admin.listen, None);
    assert_eq!(loaded.config.server.cores, Cores::List(vec![0, 1]));
    assert_eq!(value_of(&loaded, "server.listen").1, "flag --listen");
}

#[test]
fn texts_are_toml_where_they_parse_as_toml() {
    let values = [
        "inbound.quote=topic:t",
        "inbound.chat.send=\"broadcast\"",
        "server.cores=1",
        "server.path=/x",
        "limits.rate={messages_per_second=1.5,policy=\"close\"}",
        "server.listen=127.0.0.1:7",
        "resume.ttl=0x9",
        "auth.token=0123",
        "auth.allowed_origins=[\"null\"]",
        "backpressure.high_water_mark=64KiB",
    ];
    let mut flags = set(&values);
    assert!(with(&[], &flags).unwrap_err().contains("resume.ttl"), "a number is no duration");
    flags.set.retain(|(k, _)| k != "resume.ttl");
    let config = with(&[], &flags).unwrap().config;
    assert_eq!(config.inbound["quote"], InboundRule::Topic("t".into()));
    assert_eq!(config.inbound["chat.send"], InboundRule::Broadcast);
    assert_eq!(config.server.cores, Cores::Count(1));
    assert_eq!(config.server.path, "/x");
    assert_eq!(config.limits.rate, Rate { messages_per_second: 1.5, burst: 0, close: true });
    assert_eq!(config.server.listen.len(), 1);
    assert_eq!(config.auth.token, "0123", "a token of digits is taken as it stands");
    assert_eq!(config.auth.allowed_origins, ["null"]);
    assert_eq!(config.backpressure.high_water_mark, 65_536);
}

#[test]
fn errors_in_the_file_name_its_line() {
    let folder = Folder::new("errors");
    for (text, error) in [
        (
            "[server]\npath = \"/ws\"\nmax_conections = 5\n",
            "c.toml:3: unknown key max_conections in [server]; did you mean max_connections?",
        ),
        (
            "[bakpressure]\nmax_queue = 1\n",
            "c.toml:1: unknown section [bakpressure]; did you mean [backpressure]?",
        ),
        ("[replay]\nttl = \"5s\"\n", "c.toml:2: unknown key ttl in [replay]; did you mean ttl of [resume]?"),
        ("\npath = \"/x\"\n", "c.toml:2: path stands outside a section; move it below [server]"),
        ("server = 5\n", "c.toml:1: server is a section, not a value; write [server] and its keys below"),
        ("[server\n", "c.toml:1: unclosed table, expected `]`; mend the TOML there"),
        ("[log]\nlevel = \"info\"\nlevel = \"warn\"\n", "c.toml:3: duplicate key; mend the TOML there"),
        (
            "[resume]\n\nttl = \"5 parsecs\"\n",
            "c.toml:3: resume.ttl: \"5 parsecs\" is no duration; write a whole number with a unit, such as \"250ms\", \
             \"30s\" or \"5m\"",
        ),
        (
            "[server]\nping_interval = 25\n",
            "c.toml:2: server.ping_interval: 25 has no unit; write \"25s\" or \"25ms\"",
        ),
        (
            "[resume]\nttl = \"0\"\n",
            "c.toml:2: resume.ttl: \"0\" is out of range; write a duration from \"1ms\" to \"30d\"",
        ),
        (
            "[backpressure]\npolicy = \"drop-oldset\"\n",
            "c.toml:2: backpressure.policy: \"drop-oldset\" is not one of \"drop-oldest\", \"drop-newest\", \
             \"disconnect\"; did you mean \"drop-oldest\"?",
        ),
        (
            "[server]\nmax_message_size = \"1MB\"\n",
            "c.toml:2: server.max_message_size: \"1MB\" is no size; write \"1MiB\"",
        ),
        (
            "[resume]\nmax_parked = -1\n",
            "c.toml:2: resume.max_parked: -1 is out of range; write a whole number from 0 to 10000000",
        ),
        (
            "[limits]\nrate = { messages_per_second = 5,\n brst = 1 }\n",
            "c.toml:3: limits.rate: unknown key brst; did you mean burst?",
        ),
        (
            "[limits]\nrate = { messages_per_second = -5 }\n",
            "c.toml:2: limits.rate: -5 is no rate; write a number from 0 (off) to 1000000000",
        ),
        (
            "[server]\npin = \"yes\"\n",
            "c.toml:2: server.pin: \"yes\" is not true or false; write true or false, without quotes",
        ),
        (
            "[server]\nlisten = []\n",
            "c.toml:2: server.listen: no address to listen on; write at least one, such as \
          [\"127.0.0.1:9400\"]",
        ),
        (
            "[rpc]\nquote = \"nats:x\"\n",
            "c.toml:2: rpc.quote: \"nats:x\" is not available in this build; write \"echo\"",
        ),
        (
            "[inbound.chat]\nsend = \"broadcast\"\n",
            "c.toml:1: inbound.chat: a table is no rule; a name with dots is one key in quotes, as \"chat.x\" = \
             \"...\"",
        ),
        (
            "[auth]\nallowed_origins = [\n\"https://a\",\n\"https://a/\"\n]\n",
            "c.toml:4: auth.allowed_origins: \"https://a/\" is no origin; write \"https://host\" or \
             \"https://host:port\", without a path",
        ),
    ] {
        assert_eq!(folder.error(text), error, "{text}");
    }
}

#[test]
fn errors_elsewhere_name_the_variable_or_the_flag() {
    for (name, value, error) in [
        (
            "SEQCAST_RESUME__TTK",
            "5s",
            "environment variable SEQCAST_RESUME__TTK: unknown key ttk in [resume]; did you mean SEQCAST_RESUME__TTL?",
        ),
        (
            "SEQCAST_RESUM__TTL",
            "5s",
            "environment variable SEQCAST_RESUM__TTL: unknown section [resum]; did you mean SEQCAST_RESUME__TTL?",
        ),
        (
            "SEQCAST_RESUME_TTL",
            "5s",
            "environment variable SEQCAST_RESUME_TTL: one underscore between section and key; did you mean \
             SEQCAST_RESUME__TTL?",
        ),
        (
            "SEQCAST_SERVER__COALESCE",
            "5",
            "environment variable SEQCAST_SERVER__COALESCE: server.coalesce: 5 has no unit; write \"5s\" or \"5ms\"",
        ),
    ] {
        assert_eq!(with(&[(name, value)], &Flags::default()).unwrap_err(), error);
    }
    for (flag, error) in [
        ("resume.tll=5", "flag --set resume.tll: unknown key tll in [resume]; did you mean resume.ttl?"),
        ("resume=5", "flag --set resume: resume names no key; write SECTION.KEY=VALUE"),
        (
            "limits.rate.burst=5",
            "flag --set limits.rate.burst: unknown key \"rate.burst\" in [limits]; limits.rate is set as a whole, as a \
             TOML value",
        ),
    ] {
        assert_eq!(with(&[], &set(&[flag])).unwrap_err(), error);
    }
    let missing = config::load(Some("/nonexistent/c.toml".as_ref()), std::iter::empty(), &Flags::default());
    assert_eq!(
        missing.unwrap_err().to_string(),
        "/nonexistent/c.toml: cannot read the configuration: No such file or directory (os error 2); name a readable \
         file of TOML with --config"
    );
}

#[test]
fn numbers_in_every_spelling_of_toml() {
    let folder = Folder::new("numbers");
    let text = "[backpressure]\nmax_queue = 1_000\nhigh_water_mark = 0x1_0000\n[trace]\ncapacity = 0b11\n\
        [limits]\nrate = { messages_per_second = 1_000.5 }\n";
    let config = folder.load(text).unwrap().config;
    let read = (config.backpressure.max_queue, config.backpressure.high_water_mark, config.trace.capacity);
    assert_eq!((read, config.limits.rate.messages_per_second), ((1000, 65_536, 3), 1000.5));
    assert!(folder.error("[trace]\ncapacity = 99999999999999999999\n").contains("is out of range"));
    assert!(folder.error("[trace]\ncapacity = 1.0\n").contains("1.0 is no whole number"));
}

#[test]
fn zero_is_off_where_off_exists() {
    let folder = Folder::new("zero");
    let config =
        folder.load("[server]\nping_interval = 0\ncoalesce = \"0\"\nhello_wait = \"0s\"\n").unwrap().config;
    let server = config.server;
    assert_eq!([server.ping_interval, server.coalesce, server.hello_wait], [Duration::ZERO; 3]);
    assert!(
        folder
            .error("[server]\nidle_timeout = \"0\"\n")
            .contains("server.idle_timeout: \"0\" is out of range")
    );
}

#[test]
fn tokens_come_from_files_too() {
    let folder = Folder::new("tokens");
    let token = folder.file("token", "from-a-file\n");
    let token = token.display();
    let loaded =
        folder.load(&format!("[auth]\ntoken_file = '{token}'\n[admin]\ntoken_file = '{token}'\n")).unwrap();
    assert_eq!(loaded.config.auth.token, "from-a-file");
    assert_eq!(loaded.config.admin.token, "from-a-file");
    let loaded = with(&[("SEQCAST_AUTH__TOKEN_FILE", &token.to_string())], &set(&["auth.token=x"])).unwrap();
    assert_eq!(loaded.config.auth.token, "x", "a flag wins over a variable, however each is spelt");
    let identity = format!("[[auth.identity]]\ntoken_file = '{token}'\nid = \"u\"\n");
    assert_eq!(folder.load(&identity).unwrap().config.auth.identity[0].token, "from-a-file");

    let both = format!("[auth]\ntoken = \"a\"\ntoken_file = '{token}'\n");
    assert_eq!(
        folder.error(&both),
        "c.toml:3: auth.token and auth.token_file are both given; keep one of them"
    );
    let both = format!("[[auth.identity]]\ntoken = \"a\"\ntoken_file = '{token}'\n");
    assert!(folder.error(&both).contains("an identity has token and token_file"));
    assert_eq!(
        folder.error("[auth]\ntoken_file = \"${CREDENTIALS_DIRECTORY}/t\"\n"),
        "c.toml:2: auth.token_file: ${CREDENTIALS_DIRECTORY} stands for a folder, and the environment has no such \
         variable; start it from a unit with LoadCredential=, or write the folder of the file"
    );
    assert!(folder.error("[auth]\ntoken_file = \"/nonexistent\"\n").contains("cannot read \"/nonexistent\""));
    for (contents, why) in [("", "is empty"), ("\n", "is empty"), ("a\nb\n", "control character")] {
        let path = folder.file("bad-token", contents);
        let error = folder.error(&format!("[auth]\ntoken_file = '{}'\n", path.display()));
        assert!(error.contains(why), "{contents:?}: {error}");
    }
    let long = folder.file("long-token", &"x".repeat(5000));
    assert!(folder.error(&format!("[auth]\ntoken_file = '{}'\n", long.display())).contains("too long"));
    assert!(folder.error("[server]\npath_file = \"x\"\n").contains("unknown key path_file"));
}

#[test]
fn secrets_are_not_shown() {
    let folder = Folder::new("secrets");
    let text = "[admin]\ntoken = \"s3cret-1\"\n[auth]\ntoken = \"s3cret-2\"\n[[auth.identity]]\ntoken = \"s3cret-3\"\n";
    let shown: String = folder.load(text).unwrap().lines().iter().map(|l| l.value.clone()).collect();
    assert!(!shown.contains("s3cret") && shown.contains("***"), "{shown}");
    for text in [
        "[auth]\ntoken = \"s3cret\\t\"\n",
        "[auth]\ntoken = [\"s3cret\"]\n",
        "[[auth.identity]]\ntoken = \
        [\"s3cret\"]\n",
        "[[auth.identity]]\ntoken = \"s3cret\"\n[[auth.identity]]\ntoken = \"s3cret\"\n",
        "[auth]\ntoken = \"s3cret\"\n[[auth.identity]]\ntoken = \"s3cret\"\n",
    ] {
        let error = folder.error(text);
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[test]
fn identities() {
    let folder = Folder::new("identities");
    let text = concat!(
        "[[auth.identity]]\ntoken = \"tok-ann\"\nid = \"u1\"\nuser = \"ann\"\ngroups = [\"premium\"]\n",
        "meta = { name = \"Ann\", age = 5, tags = [1.5, true] }\ntopics = [\"*\"]\njoin_groups = [\"g\"]\n",
        "publish = [\"p\"]\n[[auth.identity]]\ntoken = \"tok-bob\"\n",
    );
    let identities = folder.load(text).unwrap().config.auth.identity;
    let meta = serde_json::json!({"name": "Ann", "age": 5, "tags": [1.5, true]});
    let ann = Identity {
        token: "tok-ann".into(),
        id: Some("u1".into()),
        user: Some("ann".into()),
        groups: vec!["premium".into()],
        meta: meta.as_object().cloned(),
        topics: vec!["*".into()],
        join_groups: vec!["g".into()],
        publish: vec!["p".into()],
    };
    assert_eq!(identities, [ann, Identity { token: "tok-bob".into(), ..Identity::default() }]);
    let inline = with(&[], &set(&["auth.identity=[{token=\"a\",id=\"b\"}]"])).unwrap();
    assert_eq!(inline.config.auth.identity[0].id.as_deref(), Some("b"));

    for (text, error) in [
        (
            "[[auth.identity]]\ntoken = \"a\"\ntopcs = [\"*\"]\n",
            "c.toml:3: auth.identity: unknown key topcs; did you mean topics?",
        ),
        (
            "[[auth.identity]]\ntoken = \"a\"\n\n[[auth.identity]]\ntoken = \"a\"\n",
            "c.toml:4: auth.identity: identity 2 has the same token as identity 1; give each its own token",
        ),
        (
            "[[auth.identity]]\nid = \"a\"\n",
            "c.toml:1: auth.identity: an identity has no token; give it token = \"...\" or token_file = \"path\"",
        ),
        (
            "[[auth.identity]]\ntoken = \"\"\n",
            "c.toml:1: auth.identity: an identity has no token; give it token = \"...\" or token_file = \"path\"",
        ),
        (
            "[[auth.identity]]\ntoken = \"x\"\nid = \"a7-0123456789abcdef01234567\"\n",
            "c.toml:3: auth.identity: \"a7-0123456789abcdef01234567\" has the form of the ids that the server makes \
             for anonymous clients; choose another id",
        ),
        (
            "[[auth.identity]]\ntoken = \"x\"\nid = \"\"\n",
            "c.toml:3: auth.identity: the name is empty; write one, or leave the key out",
        ),
        (
            "[auth]\ntoken = \"x\"\n[[auth.identity]]\ntoken = \"x\"\n",
            "c.toml:3: auth.identity: identity 1 has the shared auth.token; give it its own token",
        ),
    ] {
        assert_eq!(folder.error(text), error, "{text}");
    }
}

#[test]
fn values_of_different_keys_have_to_agree() {
    let folder = Folder::new("agree");
    assert_eq!(
        folder.error("[admin]\nlisten = \"0.0.0.0:0\"\n"),
        "c.toml:2: admin.listen: \"0.0.0.0:0\" is not loopback, and there is no admin.token; set admin.token (or \
         admin.token_file), or listen on 127.0.0.1 or a unix socket"
    );
    for text in [
        "[admin]\nlisten = \"0.0.0.0:0\"\ntoken = \"t\"\n",
        "[admin]\nlisten = \"unix:/run/a\"\n",
        "[admin]\nlisten = \"[::1]:5\"\n",
        "[admin]\nlisten = \"[::ffff:127.0.0.1]:5\"\n",
        "[admin]\nlisten = \"\"\n[server]\nlisten = \"0.0.0.0:0\"\n",
    ] {
        assert!(folder.load(text).is_ok(), "{text}");
    }
    let twice = "[server]\nlisten = [\"127.0.0.1:0\", \"127.0.0.1:0\", \"127.0.0.1:5\", \"127.0.0.1:5\"]\n";
    assert!(folder.error(twice).starts_with("c.toml:2: server.listen: \"127.0.0.1:5\" is listened on twice"));
    let big = "[server]\nmax_message_size = \"2MiB\"\n[limits]\ninbound_bytes = \"1MiB\"\n";
    assert!(folder.error(big).starts_with("c.toml:2: server.max_message_size: \"2MiB\" is more than"));
    let warned = config::check(&folder.load("[server]\nidle_timeout = \"1s\"\n").unwrap().config).unwrap();
    assert!(warned.len() == 1 && warned[0].contains("server.idle_timeout"), "{warned:?}");
}

#[test]
fn what_a_program_makes_is_checked_too() {
    assert_eq!(config::check(&Config::default()), Ok(Vec::new()));
    let with = |identities: &[(&str, &str)], origin: &str| {
        let identity = |(token, id): &(&str, &str)| Identity {
            token: (*token).into(),
            id: Some((*id).into()),
            ..Identity::default()
        };
        let mut config = Config::default();
        config.auth.identity = identities.iter().map(identity).collect();
        config.auth.allowed_origins = vec![origin.into()];
        config::check(&config).map_err(|e| e.to_string())
    };
    assert!(with(&[("a", "x"), ("b", "x")], "https://a").is_ok());
    for (identities, origin, says) in [
        (&[("", "x")][..], "null", "identity 1 has no token of its own"),
        (&[("a", "x"), ("a", "y")], "null", "identity 2 has no token of its own"),
        (&[("a", "")], "null", "\"\" is no id"),
        (&[("a", "a1-0123456789abcdef01234567")], "null", "is no id"),
        (&[], "https://a/", "is no origin"),
    ] {
        let error = with(identities, origin).unwrap_err();
        assert!(error.starts_with("configuration: auth.") && error.contains(says), "{error}");
    }
}

#[test]
fn the_descriptor_limit_lowers_the_connections() {
    let mut config = Config::default();
    assert_eq!(config::clamp_connections(&mut config, 200_000), None);
    assert!(config::clamp_connections(&mut config, 1024).unwrap().contains("992 is used"));
    assert_eq!(config.server.max_connections, 992);
    assert!(config::clamp_connections(&mut config, 10).is_some());
    assert_eq!(config.server.max_connections, 1);
}

#[test]
fn a_reload_tells_what_can_change_and_what_cannot() {
    let folder = Folder::new("reload");
    let before = folder.load("[auth]\ntoken = \"a\"\n[server]\npath = \"/a\"\n").unwrap();
    assert_eq!(before.changes(&before.reload().unwrap()), Changes::default());
    folder.file(
        "c.toml",
        "[auth]\ntoken = \"b\"\n[server]\npath = \"/b\"\n[log]\nlevel = \"warn\"\n[limits]\nrate = \
         {messages_per_second = 1}\ntopic_name_bytes = 9\n[inbound]\nx = \"none\"\n",
    );
    let changes = before.changes(&before.reload().unwrap());
    assert_eq!(changes.reloadable, ["auth.token", "limits.rate", "log.level"]);
    assert_eq!(changes.restart, ["server.path", "limits.topic_name_bytes", "inbound"]);
    folder.file("c.toml", "[auth]\ntokn = \"b\"\n");
    assert!(before.reload().is_err());
}

#[test]
fn what_check_prints_loads_as_it_was() {
    let folder = Folder::new("round");
    let text = concat!(
        "[server]\nlisten = [\"127.0.0.1:1\", \"unix:/a b\"]\ncores = \"3-3\"\ncoalesce = \"1500us\"\n",
        "[inbound]\n\"chat.send\" = \"topic:a\\\"b\\n\"\n[backpressure]\npolicy = \"disconnect\"\n",
        "high_water_mark = 1000\n",
        "[limits]\nrate = { messages_per_second = 0.5, burst = 3, policy = \"close\" }\n[rpc]\nquote = \"echo\"\n",
    );
    let loaded = folder.load(text).unwrap();
    let printed: String =
        loaded.lines().iter().map(|l| format!("{} = {}  # {}\n", l.key, l.value, l.source)).collect();
    let again = folder.load(&printed).unwrap();
    assert_eq!(again.config, loaded.config);
    assert_eq!(again.config.backpressure.policy, Policy::Disconnect);
}

/// Pieces of docs/OPERATING.md between ```toml and ```.
fn documented() -> Vec<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/OPERATING.md")).unwrap();
    let pieces = page.split("```toml\n").skip(1);
    pieces.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_page_lists_every_key_as_it_is() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/OPERATING.md")).unwrap();
    for key in config::reference() {
        let row = format!("| `{}` | {} | `{}` | ", key.key, key.takes, key.default);
        assert!(page.contains(&row), "docs/OPERATING.md needs the row {row}");
    }
    let rows =
        page.lines().filter(|l| l.starts_with("| `") && l.contains("` | ") && l.split(" | ").count() == 4);
    assert_eq!(
        rows.count(),
        config::reference().len(),
        "docs/OPERATING.md has rows of keys that do not exist"
    );
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    let folder = Folder::new("documented");
    let loaded = folder.load(&documented()[0]).unwrap();
    assert_eq!(loaded.config, Config::default());
    let given = config::reference().into_iter().filter(|k| k.key != "auth.identity");
    for key in given {
        assert!(loaded.sources.contains_key(&key.key), "the documented file leaves {} out", key.key);
    }
}

#[test]
fn the_documented_example_loads() {
    let folder = Folder::new("example");
    let token = folder.file("shared-token", "a");
    folder.file("ann-token", "b");
    let text = documented()[1].replace("/etc/seqcast", token.parent().unwrap().to_str().unwrap());
    let config = folder.load(&text).unwrap().config;
    assert_eq!((config.auth.identity.len(), config.inbound.len(), config.rpc.len()), (1, 2, 1));
}
