/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */

#include <common/test.h>
extern "C" {
#include <ucp/core/ucp_context.h>
#include <ucp/core/ucp_mm.inl>
#include <uct/base/uct_md.h>
#include <ucs/config/ucm_late_hooks.h>
#include <ucs/memory/rcache.h>
#include <ucs/memory/rcache_int.h>
#include <ucs/arch/atomic.h>
#include <ucs/sys/sys.h>
}
#include <pthread.h>
#include <ftw.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <atomic>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <vector>

/* Of ids. The cache's timer asks and deregisters in another thread */
class id_set {
public:
    bool insert(int id)
    {
        std::lock_guard<std::mutex> guard(m_lock);
        return m_ids.insert(id).second;
    }

    size_t erase(int id)
    {
        std::lock_guard<std::mutex> guard(m_lock);
        return m_ids.erase(id);
    }

    size_t count(int id) const
    {
        std::lock_guard<std::mutex> guard(m_lock);
        return m_ids.count(id);
    }

    size_t size() const
    {
        std::lock_guard<std::mutex> guard(m_lock);
        return m_ids.size();
    }

    bool empty() const
    {
        return size() == 0;
    }

private:
    mutable std::mutex m_lock;
    std::set<int>      m_ids;
};

/* A cache whose regions are asked whether they are valid, without events */
class test_rcache_valid : public ucs::test {
protected:
    struct region {
        ucs_rcache_region_t super;
        int                 id;
    };

    virtual void init()
    {
        static const ucs_rcache_ops_t ops = {reg, dereg, dump, valid};
        ucs_rcache_params_t params        = {};

        ucs::test::init();
        params.region_struct_size = sizeof(region);
        params.alignment          = UCS_PGT_ADDR_ALIGN;
        params.max_alignment      = ucs_get_page_size();
        params.ops                = &ops;
        params.context            = this;
        params.max_regions        = ULONG_MAX;
        params.max_size           = SIZE_MAX;
        params.max_unreleased     = SIZE_MAX;
        params.flags              = UCS_RCACHE_FLAG_PURGE_ON_FORK;
        UCS_TEST_CREATE_HANDLE(ucs_rcache_t*, m_rcache, ucs_rcache_destroy,
                               ucs_rcache_create, &params, "test",
                               ucs_stats_get_root());
    }

    virtual void cleanup()
    {
        m_forking = NULL;
        m_rcache.reset();
        EXPECT_TRUE(m_registered.empty());
        ucs::test::cleanup();
    }

    void fail(uintptr_t start, size_t length)
    {
        ucs_rcache_region_t *found = NULL;

        m_fail = true;
        m_told = 0;
        EXPECT_EQ(UCS_ERR_IO_ERROR,
                  ucs_rcache_get(m_rcache, (void*)start, length,
                                 PROT_READ | PROT_WRITE, NULL, &found));
        m_fail = false;
        EXPECT_EQ(1, m_told);
    }

    region *get(uintptr_t start, size_t length)
    {
        ucs_rcache_region_t *found = NULL;

        ASSERT_UCS_OK(ucs_rcache_get(m_rcache, (void*)start, length,
                                     PROT_READ | PROT_WRITE, NULL, &found));
        return ucs_derived_of(found, region);
    }

    void put(region *r)
    {
        ucs_rcache_region_put(m_rcache, &r->super);
    }

    /* Get and put; which region it was, and where it starts */
    int use(uintptr_t start, size_t length, uintptr_t *region_start = NULL)
    {
        region *r = get(start, length);
        int id    = r->id;

        if (region_start != NULL) {
            *region_start = r->super.super.start;
        }
        put(r);
        return id;
    }

    /* After the cache's own handler has emptied it: another one that uses it again,
     * and takes longer than the timer's interval */
    void while_forking()
    {
        get_and_put_in_doubt(START);
        m_hold = true;
        for (int i = 0; (i < 300) && !m_held; ++i) {
            usleep(10000);
        }
    }

    static void before_fork()
    {
        if (m_forking != NULL) {
            m_forking->while_forking();
        }
    }

    /* The cache asks of it each time */
    region *get_and_put_in_doubt(uintptr_t start)
    {
        region *r = get(start, SIZE / 2);

        put(r);
        ucs_atomic_or64(&r->super.doubt[0], 1);
        return r;
    }

    /* Whether the writer of that word has to leave it as it is */
    static bool is_used(region *r, int which)
    {
        return (r->super.doubt[which] & UCS_RCACHE_DOUBT_USED) != 0;
    }

    static const uintptr_t START = 0x100000;
    static const size_t    SIZE  = 0x1000;

    static int                  m_atfork;
    static test_rcache_valid    *m_forking; /* does it, and uses its cache meanwhile */
    std::atomic<int>            m_by_timer{0}; /* asked by another thread */
    std::atomic<int>            m_slow{0}; /* usec, it takes then */
    std::atomic<bool>           m_hold{false}; /* it stays there */
    std::atomic<bool>           m_held{false};
    id_set                      m_registered;
    id_set                      m_stale;
    int                         m_next_id = 1;
    bool                        m_fail    = false;
    int                         m_fails   = 0; /* while it is registered */
    int                         m_told    = 0; /* failures not hidden */
    bool                        m_words   = false; /* another writes the doubt */
    bool                        m_second  = false; /* there are two words of it */
    volatile uint64_t           m_other[2] = {0x100, 0x200};
    int                         m_unused  = 0; /* asked of unused ones */
    bool                        m_kept    = false; /* and goes on to */
    int                         m_errno   = 0; /* of a failure */
    int                         m_asked   = 0; /* by the test's thread */
    pthread_t                   m_thread  = pthread_self();
    ucs::handle<ucs_rcache_t*>  m_rcache;

private:
    static ucs_status_t reg(void *context, ucs_rcache_t *rcache, void *arg,
                            ucs_rcache_region_t *r, uint16_t flags)
    {
        test_rcache_valid *self = reinterpret_cast<test_rcache_valid*>(context);
        int id                  = self->m_next_id++;

        if (self->m_fail || self->m_registered.count(self->m_fails)) {
            self->m_told += !(flags & UCS_RCACHE_MEM_REG_HIDE_ERRORS);
            errno         = self->m_errno;
            return UCS_ERR_IO_ERROR;
        }

        if (self->m_words) {
            r->doubt_low = self->m_second ? UCS_RCACHE_DOUBT_SECOND : 0;
        }

        ucs_derived_of(r, region)->id = id;
        self->m_registered.insert(id);
        return UCS_OK;
    }

    static void
    dereg(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *r)
    {
        test_rcache_valid *self = reinterpret_cast<test_rcache_valid*>(context);

        if (self->m_kept) {
            r->flags |= UCS_RCACHE_REGION_FLAG_DOUBTED;
        }

        self->m_registered.erase(ucs_derived_of(r, region)->id);
    }

    static void dump(void *context, ucs_rcache_t *rcache,
                     ucs_rcache_region_t *r, char *buf, size_t max)
    {
        snprintf(buf, max, "id %d", ucs_derived_of(r, region)->id);
    }

    static int valid(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *r)
    {
        test_rcache_valid *self = reinterpret_cast<test_rcache_valid*>(context);

        if (pthread_equal(self->m_thread, pthread_self())) {
            ++self->m_asked;
            self->m_unused += !is_used(ucs_derived_of(r, region), 0);
        } else {
            self->in_timer();
        }

        return !self->m_stale.count(ucs_derived_of(r, region)->id);
    }

    void in_timer()
    {
        ++m_by_timer;
        usleep(m_slow);
        while (m_hold) {
            m_held = true;
            usleep(1000);
        }
    }
};

test_rcache_valid *test_rcache_valid::m_forking;

/* It is called after the cache's, as it is there before: the last one is the first */
int test_rcache_valid::m_atfork = pthread_atfork(before_fork, NULL, NULL);

UCS_TEST_F(test_rcache_valid, valid_is_found) {
    int id = use(START, SIZE);

    EXPECT_EQ(id, use(START, SIZE));
    EXPECT_EQ(id, use(START + 64, SIZE / 2));
    EXPECT_EQ(1u, m_registered.size());
}

UCS_TEST_F(test_rcache_valid, stale_is_replaced) {
    int id = use(START, SIZE);

    m_stale.insert(id);
    EXPECT_NE(id, use(START, SIZE));
    EXPECT_FALSE(m_registered.count(id));
    EXPECT_EQ(1u, m_registered.size());
}

UCS_TEST_F(test_rcache_valid, without_words_each_hit_asks) {
    int id = use(START, SIZE);

    m_asked = 0;
    EXPECT_EQ(id, use(START, SIZE));
    EXPECT_EQ(id, use(START, SIZE));
    EXPECT_EQ(2, m_asked);
}

UCS_TEST_F(test_rcache_valid, only_in_doubt_a_hit_asks) {
    region *r;

    m_words  = true;
    m_second = true;
    r        = get(START, SIZE);
    for (int which = 0; which < 2; ++which) {
        m_asked               = 0;
        ucs_atomic_or64(&r->super.doubt[which], 0x800); /* not the low byte */
        EXPECT_EQ(r->id, use(START, SIZE));
        EXPECT_EQ(0, m_asked);

        ucs_atomic_or64(&r->super.doubt[which], 0x82);
        EXPECT_EQ(r->id, use(START, SIZE));
        EXPECT_EQ(1, m_asked);
        ucs_atomic_and64(&r->super.doubt[which], ~0x882ul);
    }

    m_stale.insert(r->id);
    EXPECT_EQ(r->id, use(START, SIZE));
    ucs_atomic_or64(&r->super.doubt[1], 1);
    EXPECT_NE(r->id, use(START, SIZE));
    put(r);
}

/* The writer of a region's words may take its memory while nobody uses it */
UCS_TEST_F(test_rcache_valid, words_tell_of_users) {
    m_words  = true;
    m_second = true;

    region *r = get(START, SIZE);

    for (int i = 0; i < 2; ++i) {
        for (int which = 0; which < 2; ++which) {
            EXPECT_TRUE(is_used(r, which)) << which;
        }

        EXPECT_EQ(r, get(START, SIZE));
        ucs_rcache_region_hold(m_rcache, &r->super);
        put(r);
        put(r);
        for (int which = 0; which < 2; ++which) {
            EXPECT_TRUE(is_used(r, which)) << which;
        }

        put(r);
        for (int which = 0; which < 2; ++which) {
            EXPECT_FALSE(is_used(r, which)) << which;
        }

        EXPECT_EQ(r, get(START, SIZE));
    }

    put(r);
}

/* It has one reference then, as one that is in the cache, and that nobody uses */
UCS_TEST_F(test_rcache_valid, words_tell_of_users_of_what_is_stale) {
    m_words  = true;
    m_second = true;

    region *r = get(START, SIZE);

    m_stale.insert(r->id);
    ucs_atomic_or64(&r->super.doubt[0], 1);
    EXPECT_NE(r->id, use(START, SIZE));
    EXPECT_EQ(1u, r->super.refcount);
    for (int which = 0; which < 2; ++which) {
        EXPECT_TRUE(is_used(r, which)) << which;
    }

    put(r);
    EXPECT_EQ(1u, m_registered.size());
}

/* Else its memory could be taken between the look and the reference */
UCS_TEST_F(test_rcache_valid, reference_is_before_the_look) {
    region *r = get(START, SIZE); /* its doubt stays */

    put(r);
    m_asked  = 0;
    m_unused = 0;
    EXPECT_EQ(r->id, use(START, SIZE)); /* fast */
    EXPECT_EQ(1, m_asked);
    EXPECT_EQ(0, m_unused);

    /* A miss asks for itself first, and then when it finds it */
    use(START + 2 * SIZE, SIZE / 2);
    m_asked  = 0;
    m_unused = 0;
    use(START + SIZE / 2, SIZE); /* slow: merged */
    EXPECT_EQ(3, m_asked);
    EXPECT_EQ(2, m_unused);
    EXPECT_EQ(2u, m_registered.size());
}

/* A region may be told of by another one's words */
UCS_TEST_F(test_rcache_valid, follower_is_asked_if_the_other_says_so) {
    region *r = get(START, SIZE);
    int id;

    ucs_rcache_region_follow(&r->super, m_other);
    put(r);
    EXPECT_FALSE(is_used(r, 0));
    for (int which = 0; which < 2; ++which) {
        m_asked = 0;
        EXPECT_EQ(r->id, use(START, SIZE));
        use(START + (2 + which) * SIZE, SIZE / 2);
        EXPECT_EQ(which, m_asked); /* the miss asks of those without words */

        m_asked         = 0;
        m_other[which] |= 2;
        EXPECT_EQ(r->id, use(START, SIZE));
        EXPECT_EQ(1, m_asked);
        m_other[which] &= ~2ul;
    }

    id = r->id;
    m_stale.insert(id);
    m_other[1] |= 1;
    use(START + 5 * SIZE, SIZE / 2); /* nor does it stay without a hit */
    EXPECT_FALSE(m_registered.count(id));
}

/* A writer of a region's doubt may write for ever, and must not meet another one */
UCS_TEST_F(test_rcache_valid, doubted_memory_is_not_reused) {
    std::set<region*> seen;

    m_kept = true;
    for (int i = 0; i < 100; ++i) {
        region *r = get(START, SIZE);

        EXPECT_TRUE(seen.insert(r).second);
        m_stale.insert(r->id);
        put(r);
    }
    m_kept = false;
}

UCS_TEST_F(test_rcache_valid, stale_in_use_stays_registered) {
    region *first = get(START, SIZE);
    int id        = first->id;

    m_stale.insert(id);
    EXPECT_NE(id, use(START, SIZE));
    use(START + 2 * SIZE, SIZE); /* it is not dropped again */
    EXPECT_TRUE(m_registered.count(id));
    put(first);
    EXPECT_FALSE(m_registered.count(id));
}

UCS_TEST_F(test_rcache_valid, stale_is_not_merged) {
    uintptr_t start;
    int id = use(START, SIZE);

    m_stale.insert(id);
    use(START + SIZE / 2, SIZE, &start);
    EXPECT_EQ(START + SIZE / 2, start);
    EXPECT_FALSE(m_registered.count(id));

    /* A valid one is */
    use(START, SIZE, &start);
    EXPECT_EQ(START + 0, start);
    EXPECT_EQ(1u, m_registered.size());
}

/* The memory that could not be registered may be gone by now */
UCS_TEST_F(test_rcache_valid, failed_is_not_merged) {
    uintptr_t start;

    fail(START, SIZE);
    use(START + SIZE / 2, SIZE, &start);
    EXPECT_EQ(START + SIZE / 2, start);
}

UCS_TEST_F(test_rcache_valid, failed_do_not_pile_up) {
    for (int i = 0; i < 1000; ++i) {
        fail(START + i * SIZE, SIZE / 2);
    }

    EXPECT_LE(m_rcache.get()->num_regions, 8u);
}

/* They are not asked for again, and no event tells of them */
UCS_TEST_F(test_rcache_valid, stale_do_not_pile_up) {
    static const int live = 100, all = 10000;

    for (int i = 0; i < all; ++i) {
        int id = use(START + i * SIZE, SIZE / 2);
        if (i >= live) {
            m_stale.insert(id);
        }
    }

    EXPECT_LE(m_registered.size(), size_t(live + live / 4));
    for (int i = 0; i < live; ++i) {
        EXPECT_TRUE(m_registered.count(i + 1)) << i;
    }
}

/* A few may be much memory */
UCS_TEST_F(test_rcache_valid, large_stale_do_not_pile_up) {
    static const size_t live = 1000 * SIZE / 2, large = 1ul << 30;
    size_t most = 0;

    for (int i = 0; i < 1000; ++i) {
        use(START + i * SIZE, SIZE / 2);
    }

    for (int i = 1; i < 50; ++i) {
        m_stale.insert(use(i * 2 * large, large));
        most = ucs_max(most, m_rcache.get()->total_size - live);
    }

    EXPECT_LE(most, 2 * large);
    EXPECT_LE(m_registered.size(), 1002u);
}

/* A peak of stale regions goes soon, not only when there is as much again */
UCS_TEST_F(test_rcache_valid, stale_of_a_peak_go) {
    static const int peak = 600;

    for (int i = 0; i < peak; ++i) {
        use(START + i * SIZE, SIZE / 2);
    }

    for (int i = 0; i < peak; ++i) {
        m_stale.insert(i + 1);
    }

    for (int i = 0; i < peak / 4; ++i) {
        use(START + (peak + i) * SIZE, SIZE / 2);
    }

    EXPECT_EQ(size_t(peak / 4), m_registered.size());
}

/* Nor where nothing is registered any more, with hits or without a call */
UCS_TEST_F(test_rcache_valid, stale_go_without_a_miss) {
    ucs_time_t deadline = ucs_get_time() + ucs_time_from_sec(60);
    std::vector<region*> stale;
    region *used;
    int id;

    m_words = true;
    id      = use(START, SIZE);
    used    = get(START + SIZE, SIZE);
    for (int i = 0; i < 200; ++i) {
        stale.push_back(get(START + (2 + i) * SIZE, SIZE));
        put(stale.back());
    }

    EXPECT_EQ(202u, m_registered.size());
    stale.push_back(used);
    for (region *r : stale) {
        m_stale.insert(r->id);
    }
    for (region *r : stale) {
        ucs_atomic_or64(&r->super.doubt[0], 1);
    }

    while ((m_registered.size() > 2) && (ucs_get_time() < deadline)) {
        EXPECT_EQ(id, use(START, SIZE));
    }

    EXPECT_EQ(2u, m_registered.size());
    EXPECT_TRUE(m_registered.count(used->id));
    put(used);
    while ((m_registered.size() > 1) && (ucs_get_time() < deadline)) {
        usleep(10000);
    }

    EXPECT_EQ(1u, m_registered.size());
    EXPECT_EQ(id, use(START, SIZE));
}

/* A hit waits for some regions at most */
UCS_TEST_F(test_rcache_valid, timer_lets_others_in) {
    static const int count = 8192;
    ucs_time_t deadline    = ucs_get_time() + ucs_time_from_sec(60);
    int id;

    m_words = true;
    id      = use(START, SIZE / 2);
    for (int i = 1; i < count; ++i) {
        get_and_put_in_doubt(START + i * SIZE);
    }

    usleep(100000); /* a round that has begun ends */
    m_by_timer = 0;
    m_slow     = 5000;
    while ((m_by_timer == 0) && (ucs_get_time() < deadline)) {
        usleep(1000);
    }

    EXPECT_EQ(id, use(START, SIZE / 2));
    EXPECT_GT(m_by_timer, 0);
    EXPECT_LE(m_by_timer, count / 8 / 4);
    m_slow = 0;
    while ((m_by_timer < (count / 8)) && (ucs_get_time() < deadline)) {
        usleep(1000);
    }

    EXPECT_GE(m_by_timer, count / 8);
}

/* Its pages may be others under the same keys */
UCS_TEST_F(test_rcache_valid, page_frames_are_not_looked_up, "RCACHE_CHECK_PFN=1") {
    int id = use(START, SIZE);

    EXPECT_EQ(id, use(START, SIZE));
}

/* Others wait for the lock */
UCS_TEST_F(test_rcache_valid, slow_one_ends_a_round) {
    ucs_time_t deadline = ucs_get_time() + ucs_time_from_sec(60);

    m_words = true;
    m_slow  = 20000;
    for (int i = 0; i < 64; ++i) {
        get_and_put_in_doubt(START + i * SIZE);
    }

    while ((m_by_timer == 0) && (ucs_get_time() < deadline)) {
        usleep(1000);
    }

    usleep(300000);
    EXPECT_GT(m_by_timer, 0);
    EXPECT_LE(m_by_timer, 3);
    m_slow = 0;
}

/* It has the cache's lock as it was when it was made */
UCS_TEST_F(test_rcache_valid, child_can_fork) {
    int status = -1;
    pid_t child;

    ASSERT_EQ(0, m_atfork);
    m_words   = true;
    m_forking = this;
    child     = fork();
    if (child == 0) {
        m_forking = NULL;
        signal(SIGALRM, SIG_DFL);
        alarm(10);
        child = fork();
        _exit((child < 0) || ((child > 0) && (waitpid(child, NULL, 0) < 0)));
    }

    m_forking = NULL;
    m_hold    = false;
    ASSERT_GT(child, 0);
    EXPECT_EQ(child, waitpid(child, &status, 0));
    EXPECT_EQ(0, status);
    EXPECT_FALSE(m_held);

    /* The timer goes on */
    m_by_timer = 0;
    for (int i = 0; (i < 6000) && (m_by_timer == 0); ++i) {
        usleep(10000);
    }
    EXPECT_GT(m_by_timer, 0);
}

/* It could be for want of resources that they keep */
UCS_TEST_F(test_rcache_valid, failed_drops_stale) {
    static const int live = 100;

    for (int i = 0; i < live; ++i) {
        use(START + i * SIZE, SIZE / 2);
    }

    for (int i = 0; i < live; ++i) {
        m_stale.insert(i + 1);
        m_fails = i + 1;
        use(START + (live + i) * SIZE, SIZE / 2);
        EXPECT_FALSE(m_registered.count(i + 1));
    }

    EXPECT_EQ(size_t(live), m_registered.size());
    EXPECT_EQ(0, m_told);
}

/* A failure for another reason does not ask all */
UCS_TEST_F(test_rcache_valid, failed_in_vain_asks_few) {
    for (int i = 0; i < 100; ++i) {
        use(START + i * SIZE, SIZE / 2);
    }

    m_errno = EFAULT;
    m_asked = 0;
    fail(START + 100 * SIZE, SIZE / 2);
    EXPECT_LE(m_asked, 8);

    m_errno = ENOMEM;
    m_asked = 0;
    fail(START + 101 * SIZE, SIZE / 2);
    EXPECT_GE(m_asked, 100);
}

/* Its user may just be registering it, where that is not under the cache's lock */
UCS_TEST_F(test_rcache_valid, in_use_is_not_asked) {
    region *r = get(START, SIZE / 2); /* its doubt stays */

    m_asked = 0;
    m_words = true;
    for (int i = 1; i < 20; ++i) {
        use(START + i * SIZE, SIZE / 2);
    }

    m_errno = ENOMEM;
    fail(START + 20 * SIZE, SIZE / 2);
    ucs_rcache_drop_invalid(m_rcache);
    EXPECT_EQ(0, m_asked);
    put(r);
    ucs_rcache_drop_invalid(m_rcache);
    EXPECT_EQ(1, m_asked);
}

/* One that is in use does not become free: it fails then */
UCS_TEST_F(test_rcache_valid, failed_keeps_what_is_in_use) {
    region *r                  = get(START, SIZE / 2);
    ucs_rcache_region_t *found = NULL;

    m_stale.insert(r->id);
    m_fails = r->id;
    EXPECT_EQ(UCS_ERR_IO_ERROR,
              ucs_rcache_get(m_rcache, (void*)(START + SIZE), SIZE / 2,
                             PROT_READ | PROT_WRITE, NULL, &found));
    EXPECT_TRUE(m_registered.count(r->id));
    put(r);
    use(START + SIZE, SIZE / 2);
    EXPECT_EQ(1u, m_registered.size());
}

/* UCP's cache, over a memory domain that registers if the test lets it */
class test_ucp_rcache_valid : public ucs::test {
protected:
    struct range {
        uintptr_t start, end;
    };

    virtual void init()
    {
        ucp_params_t params = {};
        ucp_config_t *config;
        ucp_context_h context;

        ucs::test::init();
        m_notify                      = ucs_global_opts.rcache_notify;
        ucs_global_opts.rcache_notify = UCS_TRY;
        ASSERT_UCS_OK(ucp_config_read(NULL, NULL, &config));
        ASSERT_UCS_OK(ucp_config_modify(config, "TLS", "self"));
        ASSERT_UCS_OK(ucp_config_modify(config, "NET_DEVICES", "all"));
        params.field_mask = UCP_PARAM_FIELD_FEATURES;
        params.features   = UCP_FEATURE_RMA;
        ASSERT_UCS_OK(ucp_init(&params, config, &context));
        ucp_config_release(config);
        m_context.reset(context, ucp_cleanup);
        ASSERT_TRUE(context->rcache != NULL);
        EXPECT_FALSE(asks()); /* it registers nothing */

        m_self             = this;
        m_ops              = *context->tl_mds[0].md->ops;
        m_ops.mem_reg      = reg;
        m_ops.mem_dereg    = dereg;
        m_ops.mem_is_valid = is_valid;
        m_ops.mem_doubt    = doubt;
        context->tl_mds[0].md->ops = &m_ops;
        flags() = (flags() & ~UCT_MD_FLAG_REG_DUMMY) | UCT_MD_FLAG_NOTIFY;
        renew();
        EXPECT_TRUE(asks());
    }

    /* A cache for the present flags */
    void renew()
    {
        ucp_mem_rcache_cleanup(m_context);
        ASSERT_UCS_OK(ucp_mem_rcache_init(m_context));
    }

    /* Whether a hit does, which has a cost */
    bool asks()
    {
        return m_context.get()->rcache->params.ops->valid != NULL;
    }

    /* Its handles can be asked, but may not know */
    void need_events()
    {
        flags() = (flags() & ~UCT_MD_FLAG_NOTIFY) | UCT_MD_FLAG_NOTIFY_SOME;
        renew();
    }

    uint64_t &flags()
    {
        return m_context.get()->tl_mds[0].attr.cap.flags;
    }

    virtual void cleanup()
    {
        m_context.reset();
        ucs_global_opts.rcache_notify = m_notify;
        EXPECT_TRUE(m_registered.empty());
        ucs::test::cleanup();
    }

    ucs_status_t get(uintptr_t start, size_t length, ucp_md_map_t md_map,
                     ucp_mem_h *memh_p)
    {
        return ucp_memh_get(m_context, (void*)start, length,
                            UCS_MEMORY_TYPE_HOST, md_map,
                            UCT_MD_MEM_ACCESS_ALL, memh_p);
    }

    void put(ucp_mem_h memh)
    {
        ucp_memh_put(m_context, memh, 0);
    }

    /* Get and put; the length of the region, 0 if it failed */
    size_t use(uintptr_t start, size_t length, ucp_md_map_t md_map)
    {
        ucp_mem_h memh;
        size_t found;

        if (get(start, length, md_map, &memh) != UCS_OK) {
            return 0;
        }

        found = ucp_memh_length(memh);
        put(memh);
        return found;
    }

    static const uintptr_t START = 0x100000;
    static const size_t    SIZE  = 0x10000;

    static test_ucp_rcache_valid *m_self;
    std::set<range*>             m_registered;
    uintptr_t                    m_gone  = 0; /* can't be registered */
    uintptr_t                    m_stale = 0; /* not the registered memory */
    volatile uint64_t            m_doubt[2] = {1, 0}; /* of all that is registered */
    bool                         m_full  = false;
    int                          m_asked = 0; /* by the test's thread */
    pthread_t                    m_thread = pthread_self();
    ucs_ternary_auto_value_t     m_notify;
    uct_md_ops_t                 m_ops;
    ucs::handle<ucp_context_h>   m_context;

private:
    static ucs_status_t reg(uct_md_h md, void *address, size_t length,
                            unsigned flags, uct_mem_h *memh_p)
    {
        uintptr_t start = (uintptr_t)address;
        range r         = {start, start + length};

        if (has(&r, m_self->m_gone)) {
            errno = EFAULT;
            return UCS_ERR_IO_ERROR;
        }

        for (range *other : m_self->m_registered) {
            if (m_self->m_full && has(other, m_self->m_stale)) {
                return UCS_ERR_IO_ERROR;
            }
        }

        *memh_p = new range(r);
        m_self->m_registered.insert((range*)*memh_p);
        return UCS_OK;
    }

    static ucs_status_t
    dereg(uct_md_h md, const uct_md_mem_dereg_params_t *params)
    {
        m_self->m_registered.erase((range*)params->memh);
        delete (range*)params->memh;
        return UCS_OK;
    }

    static int is_valid(uct_md_h md, uct_mem_h memh)
    {
        /* The cache's timer asks, too */
        m_self->m_asked += pthread_equal(m_self->m_thread, pthread_self()) != 0;
        return !has((range*)memh, m_self->m_stale);
    }

    static const volatile uint64_t *doubt(uct_md_h md, uct_mem_h memh)
    {
        return m_self->m_doubt;
    }

    static bool has(const range *r, uintptr_t address)
    {
        return (r->start <= address) && (address < r->end);
    }
};

test_ucp_rcache_valid *test_ucp_rcache_valid::m_self;

/* As memory that TCP sends, which needs no memory handle: no event tells that it
 * is gone */
UCS_TEST_F(test_ucp_rcache_valid, nothing_registered_is_not_found) {
    ucp_mem_h first, second;

    ASSERT_UCS_OK(get(START, SIZE, 0, &first));
    ASSERT_UCS_OK(get(START, SIZE, 0, &second));
    EXPECT_NE(first, second);
    put(second);
    put(first);
    EXPECT_TRUE(m_registered.empty());
    EXPECT_EQ(size_t(SIZE / 2), use(START, SIZE / 2, 1));
}

/* Such regions do not pile up either */
UCS_TEST_F(test_ucp_rcache_valid, nothing_registered_goes) {
    for (int i = 0; i < 1000; ++i) {
        EXPECT_EQ(size_t(SIZE / 2), use(START + i * SIZE, SIZE / 2, 0));
    }

    EXPECT_LE(m_context.get()->rcache->num_regions, 20u);
}

/* Asking has a cost, in each of UCP's hits */
UCS_TEST_F(test_ucp_rcache_valid, only_in_doubt_a_hit_asks) {
    EXPECT_EQ(size_t(SIZE), use(START, SIZE, 1));
    for (int i = 0; i < 2; ++i) {
        m_doubt[0] = 0x100;
        m_asked    = 0;
        EXPECT_EQ(size_t(SIZE), use(START, SIZE / 2, 1));
        EXPECT_EQ(0, m_asked);

        m_doubt[0] = 2;
        EXPECT_EQ(size_t(SIZE), use(START, SIZE / 2, 1));
        EXPECT_EQ(1, m_asked);
    }

    m_stale = START;
    EXPECT_EQ(size_t(SIZE / 2), use(START + SIZE / 2, SIZE / 2, 1));
}

/* The first to be registered may be of a domain that does not tell of all changes */
UCS_TEST_F(test_ucp_rcache_valid, with_events_each_hit_asks) {
    m_context.get()->mem_notify = UCP_MEM_NOTIFY_SOME; /* others do not notify */
    m_doubt[0]                  = 0;
    EXPECT_EQ(size_t(SIZE), use(START, SIZE, 1));
    m_asked = 0;
    EXPECT_EQ(size_t(SIZE), use(START, SIZE, 1));
    EXPECT_EQ(1, m_asked);
}

/* An event tells it */
UCS_TEST_F(test_ucp_rcache_valid, nothing_registered_is_found_with_events) {
    ucp_mem_h first, second;

    need_events();
    ASSERT_UCS_OK(get(START, SIZE, 0, &first));
    ASSERT_UCS_OK(get(START, SIZE, 0, &second));
    EXPECT_EQ(first, second);
    put(second);
    put(first);
    EXPECT_TRUE(m_registered.empty());
    EXPECT_EQ(size_t(SIZE), use(START, SIZE / 2, 1));
}

/* Where no memory domain notifies UCP's cache is as it was */
UCS_TEST_F(test_ucp_rcache_valid, without_words_none_is_asked) {
    need_events();
    EXPECT_TRUE(asks());
    flags() &= ~UCT_MD_FLAG_NOTIFY_SOME;
    renew();
    EXPECT_FALSE(asks());
    EXPECT_EQ(size_t(SIZE), use(START, SIZE, 1));
    m_stale = START;
    EXPECT_EQ(size_t(SIZE), use(START, SIZE / 2, 1));
}

/* A part of it is gone, and the event did not tell it yet */
UCS_TEST_F(test_ucp_rcache_valid, nothing_registered_is_not_extended) {
    need_events();
    EXPECT_EQ(size_t(SIZE), use(START, SIZE, 0));
    m_gone = START + SIZE - 1;
    EXPECT_EQ(size_t(SIZE / 2), use(START, SIZE / 2, 1));
    EXPECT_EQ(1u, m_registered.size());
}

UCS_TEST_F(test_ucp_rcache_valid, failed_is_not_found) {
    m_gone = START + SIZE - 1;
    {
        scoped_log_handler slh(wrap_errors_logger);
        EXPECT_EQ(0u, use(START, SIZE, 1));
    }
    EXPECT_EQ(1u, m_errors.size());
    m_gone = 0;
    EXPECT_EQ(size_t(SIZE / 2), use(START, SIZE / 2, 1));
}

UCS_TEST_F(test_ucp_rcache_valid, failed_drops_stale) {
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(size_t(SIZE / 2), use(START + i * SIZE, SIZE / 2, 1));
    }

    m_full = true;
    for (int i = 0; i < 100; ++i) {
        m_stale = START + i * SIZE;
        EXPECT_EQ(size_t(SIZE / 2), use(START + (100 + i) * SIZE, SIZE / 2, 1));
    }
}

/* Memory that is not there may be asked for again and again */
UCS_TEST_F(test_ucp_rcache_valid, failed_in_vain_asks_few) {
    scoped_log_handler slh(wrap_errors_logger);

    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(size_t(SIZE / 2), use(START + i * SIZE, SIZE / 2, 1));
    }

    m_gone  = START + 100 * SIZE;
    m_asked = 0;
    EXPECT_EQ(0u, use(m_gone, SIZE / 2, 1));
    EXPECT_LE(m_asked, 32);
}

/* Code is patched when the library is loaded, unless no cache will need it: later
 * there may be threads that run it. In a folder with what the files say */
class test_rcache_late_hooks : public ucs::test {
protected:
    /* Not those of the environment */
    ucs::scoped_setenv m_tls{"UCX_TLS", "all"};
    ucs::scoped_setenv m_devices{"UCX_NET_DEVICES", "all"};
    ucs::scoped_setenv m_methods{"UCX_IB_REG_METHODS", "rcache"};

    virtual void init()
    {
        char folder[] = "/tmp/ucx-late-hooks-XXXXXX";

        ucs::test::init();
        ASSERT_TRUE(mkdtemp(folder) != NULL);
        m_root = folder;
    }

    virtual void cleanup()
    {
        nftw(m_root.c_str(), remove_one, 16, FTW_DEPTH | FTW_PHYS);
        ucs::test::cleanup();
    }

    void write(const std::string &path, const std::string &text)
    {
        for (size_t end = path.find('/', 1); end != std::string::npos;
             end = path.find('/', end + 1)) {
            mkdir((m_root + path.substr(0, end)).c_str(), 0700);
        }

        std::ofstream(m_root + path) << text << "\n";
    }

    /* A device that counts what was armed, and can be opened */
    void add(const std::string &name, const std::string &node = "1: CA")
    {
        write(in_device(name) + "node_type", node);
        write(counter(name), "0");
        write(state(name), "4: ACTIVE");
        write("/sys/class/infiniband_verbs/uverbs-" + name + "/ibdev", name);
        write("/dev/infiniband/uverbs-" + name, "");
    }

    void remove(const std::string &path)
    {
        EXPECT_EQ(0, unlink((m_root + path).c_str()));
    }

    void driven_by(const std::string &name, const std::string &driver)
    {
        write(in_device(name) + "device/vendor", "");
        EXPECT_EQ(0, symlink(("../../bus/pci/drivers/" + driver).c_str(),
                             (m_root + in_device(name) + "device/driver").c_str()));
    }

    bool late()
    {
        return ucs_ucm_devices_notify(m_root.c_str()) != 0;
    }

    static std::string in_device(const std::string &name)
    {
        return "/sys/class/infiniband/" + name + "/";
    }

    static std::string counter(const std::string &name)
    {
        return in_device(name) + "ports/1/hw_counters/mr_notify_arms";
    }

    static std::string state(const std::string &name)
    {
        return in_device(name) + "ports/1/state";
    }

    std::string m_root;

private:
    static int
    remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
    {
        return ::remove(path);
    }
};

UCS_TEST_F(test_rcache_late_hooks, where_all_notify) {
    EXPECT_FALSE(late());
    add("rxe0");
    add("rxe1");
    EXPECT_TRUE(late());
    remove(counter("rxe1"));
    EXPECT_FALSE(late());
}

/* It may be seen in a container that has no right to it */
UCS_TEST_F(test_rcache_late_hooks, not_where_none_can_be_opened) {
    add("rxe0");
    add("rxe1");
    remove(counter("rxe1"));
    remove("/dev/infiniband/uverbs-rxe1");
    EXPECT_TRUE(late());
    remove("/dev/infiniband/uverbs-rxe0");
    EXPECT_FALSE(late());
}

/* It is not used */
UCS_TEST_F(test_rcache_late_hooks, in_spite_of_iwarp) {
    add("rxe0");
    add("siw0", "4: RNIC");
    remove(counter("siw0"));
    EXPECT_TRUE(late());
    remove(counter("rxe0"));
    EXPECT_FALSE(late());
}

/* Some of its registrations have no word */
UCS_TEST_F(test_rcache_late_hooks, not_with_mlx5) {
    add("irdma0");
    driven_by("irdma0", "irdma");
    EXPECT_TRUE(late());
    add("mlx5_0");
    driven_by("mlx5_0", "mlx5_core");
    EXPECT_FALSE(late());
}

UCS_TEST_F(test_rcache_late_hooks, not_with_others_that_register) {
    static const std::string files[] = {"/sys/kernel/mm/memory_peers/nv_mem/version",
                                        "/dev/kfd", "/dev/nvidiactl", "/dev/knem",
                                        "/dev/xpmem"};

    add("rxe0");
    for (const std::string &file : files) {
        write(file, "1");
        EXPECT_FALSE(late()) << file;
        remove(file);
        EXPECT_TRUE(late()) << file;
    }
}

UCS_TEST_F(test_rcache_late_hooks, not_where_no_port_is_active) {
    add("rxe0");
    remove(state("rxe0"));
    write(state("rxe0"), "1: DOWN");
    EXPECT_FALSE(late());
    add("rxe1");
    EXPECT_TRUE(late());
    remove(counter("rxe0"));
    EXPECT_FALSE(late());
}

UCS_TEST_F(test_rcache_late_hooks, not_where_settings_leave_them_out) {
    static const struct {
        const char *name, *value;
        bool       late;
    } settings[] = {
        {"UCX_TLS", "all", true},         {"UCX_TLS", "rc_verbs,ud_verbs,self", true},
        {"UCX_TLS", "self,ib", true},     {"UCX_TLS", "^tcp", true},
        {"UCX_TLS", "tcp,self", false},   {"UCX_TLS", "^rc,ud", false},
        {"UCX_TLS", "sm", false},         {"UCX_NET_DEVICES", "rxe0:1", true},
        {"UCX_NET_DEVICES", "all", true}, {"UCX_NET_DEVICES", "eth0", false},
        {"UCX_NET_DEVICES", "", false},   {"UCX_IB_REG_METHODS", "rcache,odp,direct", true},
        {"UCX_IB_REG_METHODS", "direct", false}};

    add("rxe0");
    for (const auto &setting : settings) {
        ucs::scoped_setenv env(setting.name, setting.value);

        EXPECT_EQ(setting.late, late()) << setting.name << "=" << setting.value;
    }
}
