/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
#ifndef UCS_UCM_LATE_HOOKS_H_
#define UCS_UCM_LATE_HOOKS_H_

#include <ucs/config/global_opts.h>
#include <ucs/config/parser.h>
#include <ucs/sys/sys.h>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>


/* Whether a setting of UCX's lets one of these through: a list of names that begin so,
 * or with ^ of others */
static inline int ucs_ucm_selects(const char *setting, const char *const *begins)
{
    const char *list = getenv(setting);
    int except, i;

    if ((list == NULL) || !strcmp(list, "all")) {
        return 1;
    }

    except = (*list == '^');
    for (list += except; *list != '\0'; list += strcspn(list, ","), list += !!*list) {
        for (i = 0; begins[i] != NULL; ++i) {
            if (!strncmp(list, begins[i], strlen(begins[i]))) {
                return !except;
            }
        }
    }

    return except;
}

/* In the following, root is "" but in tests */

UCS_F_PRINTF(1, 2) static inline int ucs_ucm_has_file(const char *format, ...)
{
    char path[PATH_MAX];
    va_list args;

    va_start(args, format);
    vsnprintf(path, sizeof(path), format, args);
    va_end(args);
    return access(path, F_OK) == 0;
}

static inline int ucs_ucm_device_is_iwarp(const char *root, const char *name)
{
    char type[8];

    return (ucs_read_file_str(type, sizeof(type), 1,
                              "%s/sys/class/infiniband/%s/node_type", root,
                              name) > 0) &&
           (type[0] == '4');
}

/* Large regions of mlx5 may be registered by several threads, and some on demand:
 * these have no word */
static inline int ucs_ucm_device_is_mlx5(const char *root, const char *name)
{
    char path[PATH_MAX], driver[PATH_MAX];
    ssize_t length;

    snprintf(path, sizeof(path), "%s/sys/class/infiniband/%s/device/driver", root,
             name);
    length = readlink(path, driver, sizeof(driver) - 1);
    if (length < 0) {
        return 0; /* it has none, if it is made of software */
    }

    driver[length] = '\0';
    return strstr(driver, "mlx5") != NULL;
}

/* Whether this process may use it. A container may see some that it can't open */
static inline int ucs_ucm_device_opens(const char *root, const char *name)
{
    int opens = 0, fd;
    struct dirent *entry;
    char device[NAME_MAX];
    char path[PATH_MAX];
    DIR *dir;

    snprintf(path, sizeof(path), "%s/sys/class/infiniband_verbs", root);
    dir = opendir(path);
    while ((dir != NULL) && !opens && ((entry = readdir(dir)) != NULL)) {
        if (ucs_read_file_str(device, sizeof(device), 1,
                              "%s/sys/class/infiniband_verbs/%s/ibdev", root,
                              entry->d_name) <= 0) {
            continue;
        }

        device[strcspn(device, "\n")] = '\0';
        if (strcmp(device, name)) {
            continue;
        }

        snprintf(path, sizeof(path), "%s/dev/infiniband/%s", root, entry->d_name);
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd >= 0) {
            opens = 1;
            close(fd);
        }
    }

    if (dir != NULL) {
        closedir(dir);
    }

    return opens;
}

/* Else no memory domain of it is used. The state is "4: ACTIVE" */
static inline int ucs_ucm_device_is_active(const char *root, const char *name)
{
    char state[16];
    int port;

    for (port = 1; ucs_read_file_str(state, sizeof(state), 1,
                                     "%s/sys/class/infiniband/%s/ports/%d/state",
                                     root, name, port) > 0; ++port) {
        if (state[0] == '4') {
            return 1;
        }
    }

    return 0;
}

/* Before it is opened by libibverbs, its counters tell it */
static inline int ucs_ucm_device_notifies(const char *root, const char *name)
{
    return ucs_ucm_has_file("%s/sys/class/infiniband/%s/ports/1/hw_counters/"
                            "mr_notify_arms", root, name) &&
           !ucs_ucm_device_is_mlx5(root, name);
}

/* Whether all RDMA devices that UCX can use notify of each registration, and it will
 * use one. It does not use iWARP */
static inline int ucs_ucm_devices_notify(const char *root)
{
    static const char *const transports[] = {"rc", "ud", "dc", "ib", "all", NULL};
    static const char *const methods[]    = {"rcache", "all", NULL};
    const char *names[]                   = {NULL, "all", NULL};
    int notify                            = 0;
    struct dirent *entry;
    char path[PATH_MAX];
    DIR *dir;

    /* Memory of GPUs has events, and so have these ways beside RDMA */
    if (ucs_ucm_has_file("%s/sys/kernel/mm/memory_peers/nv_mem/version", root) ||
        ucs_ucm_has_file("%s/dev/kfd", root) ||
        ucs_ucm_has_file("%s/dev/nvidiactl", root) ||
        ucs_ucm_has_file("%s/dev/knem", root) ||
        ucs_ucm_has_file("%s/dev/xpmem", root)) {
        return 0;
    }

    if (!ucs_ucm_selects(UCS_DEFAULT_ENV_PREFIX "TLS", transports) ||
        !ucs_ucm_selects(UCS_DEFAULT_ENV_PREFIX "IB_REG_METHODS", methods)) {
        return 0;
    }

    snprintf(path, sizeof(path), "%s/sys/class/infiniband", root);
    dir = opendir(path);
    while ((dir != NULL) && ((entry = readdir(dir)) != NULL)) {
        if ((entry->d_name[0] == '.') ||
            ucs_ucm_device_is_iwarp(root, entry->d_name) ||
            !ucs_ucm_device_opens(root, entry->d_name)) {
            continue;
        }

        if (!ucs_ucm_device_notifies(root, entry->d_name)) {
            notify = 0;
            break;
        }

        names[0] = entry->d_name;
        notify  |= ucs_ucm_device_is_active(root, entry->d_name) &&
                   ucs_ucm_selects(UCS_DEFAULT_ENV_PREFIX "NET_DEVICES", names);
    }

    if (dir != NULL) {
        closedir(dir);
    }

    return notify;
}

/* The one that uct_ib will be linked with may be older than the kernel */
static inline int ucs_ucm_libibverbs_notifies()
{
    void *lib = dlopen("libibverbs.so.1", RTLD_LAZY);
    int found;

    if (lib == NULL) {
        return 0;
    }

    found = (dlsym(lib, "ibv_reg_mr_notify") != NULL) &&
            (dlsym(lib, "ibv_settle_mr_notify") != NULL);
    dlclose(lib);
    return found;
}

/* Whether registration caches are likely to need no hooks. If so, do not patch code
 * that no cache wants patched. If not, it is patched before there are threads. */
static inline int ucs_ucm_late_mmap_hooks()
{
    if (ucs_global_opts.rcache_notify != UCS_TRY) {
        return ucs_global_opts.rcache_notify == UCS_YES;
    }

#if HAVE_DECL_IBV_REG_MR_NOTIFY
    return (getenv(UCS_DEFAULT_ENV_PREFIX "IB_ODP_MAX_SIZE") == NULL) &&
           ucs_ucm_devices_notify("") && ucs_ucm_libibverbs_notifies();
#else
    return 0;
#endif
}

#endif
