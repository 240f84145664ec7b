/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
#ifndef UCS_UCM_LATE_HOOKS_H_
#define UCS_UCM_LATE_HOOKS_H_

#include <ucs/config/global_opts.h>
#include <ucs/sys/sys.h>

#include <dirent.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>


#if HAVE_DECL_IBV_REG_MR_NOTIFY
static int ucs_ucm_device_is_iwarp(const char *name)
{
    char type[8];

    return (ucs_read_file_str(type, sizeof(type), 1,
                              "/sys/class/infiniband/%s/node_type", name) > 0) &&
           (type[0] == '4');
}

/* Whether this process may use it, as far as the node's mode tells */
static int ucs_ucm_device_opens(const char *name)
{
    DIR *dir  = opendir("/sys/class/infiniband_verbs");
    int opens = 1;
    struct dirent *entry;
    char device[NAME_MAX];
    char path[PATH_MAX];

    while ((dir != NULL) && ((entry = readdir(dir)) != NULL)) {
        if (ucs_read_file_str(device, sizeof(device), 1,
                              "/sys/class/infiniband_verbs/%s/ibdev",
                              entry->d_name) <= 0) {
            continue;
        }

        device[strcspn(device, "\n")] = '\0';
        if (!strcmp(device, name)) {
            snprintf(path, sizeof(path), "/dev/infiniband/%s", entry->d_name);
            opens = access(path, R_OK | W_OK) == 0;
            break;
        }
    }

    if (dir != NULL) {
        closedir(dir);
    }

    return opens;
}

/* Before a device is opened, its counters tell whether it notifies */
static int ucs_ucm_device_notifies(const char *name)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path),
             "/sys/class/infiniband/%s/ports/1/hw_counters/mr_notify_arms", name);
    return access(path, F_OK) == 0;
}
#endif

/* Whether registration caches are likely to need no hooks: all RDMA devices that
 * can be opened notify. If so, do not patch code that no cache wants patched. */
static int ucs_ucm_late_mmap_hooks()
{
#if HAVE_DECL_IBV_REG_MR_NOTIFY
    struct dirent *entry;
    int found = 0;
    DIR *dir;

    if (ucs_global_opts.rcache_notify != UCS_TRY) {
        return ucs_global_opts.rcache_notify == UCS_YES;
    }

    dir = opendir("/sys/class/infiniband");
    while ((dir != NULL) && ((entry = readdir(dir)) != NULL)) {
        if ((entry->d_name[0] == '.') || !ucs_ucm_device_opens(entry->d_name) ||
            ucs_ucm_device_is_iwarp(entry->d_name)) {
            continue; /* UCX does not use iWARP */
        }

        found = ucs_ucm_device_notifies(entry->d_name);
        if (!found) {
            break;
        }
    }

    if (dir != NULL) {
        closedir(dir);
    }

    return found;
#else
    return ucs_global_opts.rcache_notify == UCS_YES;
#endif
}

#endif
