/* The module uses the first available source of the key:
 * 1. The lines of the file `qa.bus-key-file`. If this setting names a file, the module uses no other source. To change
 *    the key, add the new key as the second line on every server, then make the new key the first line on every server,
 *    then remove the line with the old key.
 * 2. `requirepass`, if it differs from `masterauth`. Through the cluster bus any server can claim to be the primary,
 *    and a server sends `masterauth` to its primary. So `masterauth` must not be the key.
 * 3. A file in the home folder of the server's user. The first server of this user creates the file.
 * 4. A file in the folder of the server (`dir`), if the module cannot use a file of source 3, for example because the
 *    user has no home folder.
 * The module uses a file of source 3 or 4 only if the file and its folder belong to the server's user, no other user
 * can write to the folder, and no other user can read or write the file. The module does not check who can read
 * `qa.bus-key-file`, because mounted secrets are often readable by a group. The module checks the sources again at most
 * once a second. */
#include "server/bus_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/blake2b.h"
#include "server/config.h"
#include "server/server.h"

#define REFRESH_MS 1000
#define COMPLAIN_MS 60000
#define OWN_FILE ".qa-cluster-bus.key"

enum { MAX_KEYS = 4, MIN_KEY_TEXT = 32, MAX_FILE = 4096, OWN_BYTES = 32 };

static struct {
    uint8_t keys[MAX_KEYS][BUS_KEY_BYTES];
    int count;
    KeySource source;
    long long looked, complained;
    struct timespec modified;
    long long size, inode;
} ring;

static char own_paths[2][PATH_MAX]; /* paths of the user's file and the server's file; set at the first use, before a
                                     * client can change `dir` */

static void make_key(uint8_t *key, const char *purpose, const char *text, size_t length) {
    Blake2b hash;
    blake2b_begin(&hash, BUS_KEY_BYTES, purpose, strlen(purpose));
    blake2b_add(&hash, text, length);
    blake2b_end(&hash, key);
}

void bus_complain(const char *format, const char *detail) {
    long long now = RedisModule_Milliseconds();
    if (ring.complained && now - ring.complained < COMPLAIN_MS) return;
    ring.complained = now;
    RedisModule_Log(server_ctx(), "warning", format, detail);
}

/* Reads the keys of a file. 0: the file cannot be read, or has no key of sufficient length. Then `ring`, the keys in
 * use, does not change. */
static int read_keys(int file, KeySource source) {
    char text[MAX_FILE + 1];
    uint8_t keys[MAX_KEYS][BUS_KEY_BYTES];
    size_t length = 0;
    ssize_t got;
    while (length < MAX_FILE && (got = read(file, text + length, MAX_FILE - length)) > 0) length += (size_t)got;
    text[length] = '\0';
    int count = 0;
    char *rest = text;
    for (char *line; count < MAX_KEYS && (line = strsep(&rest, "\n"));) {
        size_t words = strcspn(line, " \t\r");
        if (words < MIN_KEY_TEXT) continue;
        make_key(keys[count++], "qa-cluster bus key, from a file", line, words);
    }
    if (count) {
        memcpy(ring.keys, keys, (size_t)count * BUS_KEY_BYTES);
        ring.count = count;
        ring.source = source;
    }
    explicit_bzero(text, sizeof text);
    explicit_bzero(keys, sizeof keys);
    return count > 0;
}

/* ---- The file that the setting names ---- */

static void look_at_file(void) {
    struct stat status;
    int there = !stat(config.bus_key_file, &status);
    if (there && ring.source == KEY_FILE && status.st_size == ring.size && (long long)status.st_ino == ring.inode &&
        !memcmp(&status.st_mtim, &ring.modified, sizeof ring.modified))
        return;
    int file = there ? open(config.bus_key_file, O_RDONLY | O_CLOEXEC) : -1;
    int found = file >= 0 && read_keys(file, KEY_FILE);
    if (file >= 0) close(file);
    if (found) {
        ring.size = status.st_size;
        ring.inode = (long long)status.st_ino;
        ring.modified = status.st_mtim;
        return;
    }
    /* The previous keys stay valid while an administrator replaces the file. */
    bus_complain("qa.bus-key-file %s cannot be read, or has no line of at least 32 characters without blanks: messages "
                 "of servers with a different key are refused",
                 config.bus_key_file);
}

/* ---- The password ---- */

static int read_password(void) {
    size_t length, sent_length;
    RedisModuleString *value = server_setting(server_ctx(), "requirepass");
    RedisModuleString *sent = server_setting(server_ctx(), "masterauth");
    const char *text = RedisModule_StringPtrLen(value, &length);
    RedisModule_StringPtrLen(sent, &sent_length);
    int usable = length && !(sent_length && !RedisModule_StringCompare(value, sent));
    if (usable) {
        make_key(ring.keys[0], "qa-cluster bus key, from a password", text, length);
        ring.count = 1;
        ring.source = KEY_PASSWORD;
    }
    RedisModule_FreeString(NULL, value);
    RedisModule_FreeString(NULL, sent);
    return usable;
}

/* ---- The files that the module creates ---- */

static int is_private_folder(const char *path) {
    struct stat status;
    return !stat(path, &status) && S_ISDIR(status.st_mode) && status.st_uid == geteuid() && !(status.st_mode & 022);
}

static void find_own_paths(void) {
    if (*own_paths[1]) return;
    const struct passwd *user = getpwuid(geteuid());
    const char *home = getenv("HOME");
    if (!home || *home != '/') home = user && user->pw_dir ? user->pw_dir : "";
    RedisModuleString *dir = server_setting(server_ctx(), "dir");
    const char *folders[] = {home, RedisModule_StringPtrLen(dir, NULL)};
    for (int i = 0; i < 2; i++) snprintf(own_paths[i], sizeof own_paths[i], "%s/" OWN_FILE, folders[i]);
    RedisModule_FreeString(NULL, dir);
}

/* Writes a random key into a new file with this path. If a different server creates the file at the same time, link()
 * fails, and this server uses the file of the other server. */
static void create_own(const char *path) {
    char fresh[PATH_MAX], text[2 * OWN_BYTES + 1];
    uint8_t bytes[OWN_BYTES];
    if (snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid()) >= (int)sizeof fresh) return;
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) return;
    hex_text(text, bytes, OWN_BYTES);
    text[2 * OWN_BYTES] = '\n';
    unlink(fresh);
    int file = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file >= 0) {
        int written = write(file, text, sizeof text) == (ssize_t)sizeof text && !fsync(file);
        close(file);
        if (written && link(fresh, path) && errno != EEXIST)
            bus_complain("the file %s for the key of the cluster cannot be created", path);
        unlink(fresh);
    }
    explicit_bzero(text, sizeof text);
    explicit_bzero(bytes, sizeof bytes);
}

static int read_own(const char *path, KeySource source) {
    char folder[PATH_MAX];
    struct stat status;
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    if (!*folder || !is_private_folder(folder)) return 0;
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0 && errno == ENOENT) {
        create_own(path);
        file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (file < 0) return 0;
    int found = !fstat(file, &status) && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
                !(status.st_mode & 077) && read_keys(file, source);
    close(file);
    if (!found)
        bus_complain("%s must contain a key, and only the server's user may read or write it (chmod 600)", path);
    return found;
}

/* ---- The ring ---- */

/* Finds the keys again if the last search was REFRESH_MS or longer ago. A child process of the server uses its parent's
 * keys, except with qa.bus-key-file. */
static void refresh(void) {
    if (*config.bus_key_file) {
        long long now = RedisModule_Milliseconds();
        if (ring.looked && now - ring.looked < REFRESH_MS && now >= ring.looked) return;
        ring.looked = now;
        look_at_file();
        return;
    }
    if (RedisModule_GetContextFlags(server_ctx()) & REDISMODULE_CTX_FLAGS_IS_CHILD) return;
    long long now = RedisModule_Milliseconds();
    if (ring.looked && now - ring.looked < REFRESH_MS && now >= ring.looked) return;
    ring.looked = now;
    find_own_paths();
    if (read_password()) return;
    /* Keys from these two files do not change while the server runs. */
    if (ring.source == KEY_USER || ring.source == KEY_SERVER) return;
    ring.count = 0;
    ring.source = KEY_NONE;
    if (!read_own(own_paths[0], KEY_USER)) read_own(own_paths[1], KEY_SERVER);
}

KeySource bus_key_source(void) {
    refresh();
    return ring.source;
}

const char *bus_key_source_name(void) {
    static const char *const NAMES[] = {"none", "file", "password", "user", "server"};
    return NAMES[bus_key_source()];
}

int bus_key(int index, uint8_t *key) {
    refresh();
    if (index >= ring.count) return 0;
    memcpy(key, ring.keys[index], BUS_KEY_BYTES);
    return 1;
}

int bus_secret(int index, const char *purpose, uint8_t *secret) {
    refresh();
    if (index >= ring.count) return 0;
    Blake2b hash;
    blake2b_begin(&hash, BUS_KEY_BYTES, ring.keys[index], BUS_KEY_BYTES);
    blake2b_add(&hash, purpose, strlen(purpose));
    blake2b_end(&hash, secret);
    return 1;
}
