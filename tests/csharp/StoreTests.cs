using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Threading;

namespace Quire.Tests
{
    /// <summary>Stores of documents.</summary>
    internal sealed class StoreTests : WithModel
    {
        private static readonly SessionOptions options = new SessionOptions
        {
            Strategy = "dca",
            KvType = DataType.F32,
            PrefillBlock = 64
        };

        private static List<object> Entries(Store store)
        {
            return (List<object>)Json.ReadObject(store.Describe())["entries"];
        }

        [Test]
        private void WhatIsPutIsFound()
        {
            string path = Path.Combine(Folder, "store");
            int[] ids = Shared.Ids(400);
            Check.Fails(Status.NotFound, () => new Store(path, 0, true));
            using (var store = new Store(path, 10000000))
            {
                StoreMatch none = store.Find(Model, ids, options);
                Check.Equal("", none.Name);
                Check.Equal("the store is empty", none.Reason);
                Check.Fails(Status.NotFound, () => store.Load(Model, ids, options));
                Session session = NewSession(options);
                session.FeedTokens(ids.Take(300));
                session.Prefill();
                StoreMatch put = store.Put(session, "Größe");
                Check.Equal(300L, put.TokenCount);
                Check.Equal(put.Name, store.Find(Model, ids, options).Name);
                Check.Contains("its kv_type is f32", store.Find(Model, ids, new SessionOptions { Strategy = "dca" }).Reason);
                var entry = (Dictionary<string, object>)Entries(store).Single();
                Check.Equal("Größe", (string)entry["title"]);
                using (Session loaded = store.Load(Model, ids, options, out StoreMatch match))
                {
                    Check.Equal(300L, match.ComputedCount);
                    store.Verify(put.Name);
                    store.Remove(put.Name);
                    Check.Equal(0, Entries(store).Count);
                    session.FeedTokens(ids.Skip(300));
                    loaded.FeedTokens(ids.Skip(300));
                    Check.Sequence(Ids(session, Tokens(12)), Ids(loaded, Tokens(12)));
                }
                Check.Fails(Status.InvalidArgument, () => store.Remove("../store.lock"));
                Check.Throws<OperationCanceledException>(() => store.Put(session, null, false, null, new CancellationToken(true)));
            }
        }

        [Test]
        private void AllOfASessionIsPut()
        {
            long[] bytes = new[] { false, true }.Select(whole =>
            {
                using (var store = new Store(Path.Combine(Folder, whole.ToString())))
                {
                    Session session = NewSession(options);
                    foreach (int[] ids in new[] { Shared.Ids(300), Shared.Ids(100) })
                    {
                        session.FeedTokens(ids);
                        session.Prefill();
                        store.Put(session, null, whole);
                    }
                    var entry = (Dictionary<string, object>)Entries(store).Single();
                    Check.Equal(400L, (long)entry["n_tokens"]);
                    return (long)entry["bytes"];
                }
            }).ToArray();
            Check.True(bytes[1] < bytes[0], bytes[1] + " bytes, and with what an addition leaves unused " + bytes[0]);
        }

        [Test]
        private void AnotherHandleFindsItToo()
        {
            int[] ids = Shared.Ids(100);
            Session session = NewSession(options);
            session.FeedTokens(ids);
            session.Prefill();
            using (var one = new Store(Folder))
            using (var two = new Store(Folder, 0, true))
            {
                one.Put(session);
                using (Session loaded = two.Load(Model, ids.Concat(new[] { 5 }), options))
                    Check.Equal(100L, loaded.TokenCount);
            }
        }
    }
}
